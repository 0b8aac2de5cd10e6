//! vmxnet, enhanced vmxnet and the flexible adapter under their drivers: numbers are those of vmxnet_def.h, vmxnet2_def.h and
//! net.h, sequences those of open-vm-tools' drivers for Linux and Solaris and of OpenBSD's if_vic.c.

mod bench;
mod flexible;
mod frames;
mod hostile;
mod interrupts;
mod offloads;
mod probe;
mod saved;
