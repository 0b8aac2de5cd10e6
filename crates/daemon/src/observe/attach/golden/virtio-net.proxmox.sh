#!/bin/sh
# Hookscript of the Proxmox VM at port vm_1. Save it as /var/lib/vz/snippets/nicety-vm_1, make it executable, and run, with the
# VM's number as VMID and its memory as SIZE, such as 4096M:
#   qm set VMID --hookscript local:snippets/nicety-vm_1 --args '-object memory-backend-memfd,id=mem,size=SIZE,share=on -machine memory-backend=mem -chardev '\''socket,id=nicety-vm_1,path=/run/n/a b'\''\'\'''\''s.sock,reconnect-ms=1000'\'' -netdev vhost-user,id=nicety-vm_1-net,chardev=nicety-vm_1,queues=2 -device virtio-net-pci,netdev=nicety-vm_1-net,mac=52:54:00:12:34:01,speed=10000,duplex=full,mq=on,vectors=6,host_mtu=1450'
case "$2" in
pre-start)
    nicety ports vm_1 >/dev/null 2>&1 ||
        nicety port add vm_1 adapter=virtio-net mac=52:54:00:12:34:01 mtu=1450 queues=2 'socket=/run/n/a b'\''s.sock' "origin=hook proxmox, VM $1"
    ;;
post-stop)
    nicety port remove vm_1 --yes --origin "hook proxmox, VM $1"
    ;;
esac
