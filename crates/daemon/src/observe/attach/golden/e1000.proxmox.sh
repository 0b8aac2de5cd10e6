#!/bin/sh
# Hookscript of the Proxmox VM at port vm_1. Save it as /var/lib/vz/snippets/nicety-vm_1, make it executable, and run, with the
# VM's number as VMID and its memory as SIZE, such as 4096M:
#   qm set VMID --hookscript local:snippets/nicety-vm_1 --args '-object memory-backend-memfd,id=mem,size=SIZE,share=on -machine memory-backend=mem -device '\''{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/run/n/a b'\''\'\'''\''s.sock"}}'\'''
case "$2" in
pre-start)
    nicety ports vm_1 >/dev/null 2>&1 ||
        nicety port add vm_1 adapter=e1000 mac=52:54:00:12:34:01 'socket=/run/n/a b'\''s.sock' vlan=7 "origin=hook proxmox, VM $1"
    ;;
post-stop)
    nicety port remove vm_1 --yes --origin "hook proxmox, VM $1"
    ;;
esac
