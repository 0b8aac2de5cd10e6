/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * String I/O of the drivers that use it, in place of asm-generic/io.h's loops:
 * included before all else, see changes-pci.
 */
#ifndef __UM_PORT_STRINGS_H
#define __UM_PORT_STRINGS_H

#ifndef __ASSEMBLY__
void um_pci_insw(unsigned long port, void *buffer, unsigned int count);
void um_pci_insl(unsigned long port, void *buffer, unsigned int count);
void um_pci_outsw(unsigned long port, const void *buffer, unsigned int count);
void um_pci_outsl(unsigned long port, const void *buffer, unsigned int count);

#define insw um_pci_insw
#define insl um_pci_insl
#define outsw um_pci_outsw
#define outsl um_pci_outsl
#endif

#endif
