// SPDX-License-Identifier: GPL-2.0-only
/*
 * I/O ports of a user-mode kernel's PCI devices.
 *
 * A machine without ports has inb() and outb() read and write memory at
 * PCI_IOBASE plus the port. Here that is a window of emulated memory, in which
 * a port is looked up among the I/O BARs that the kernel has assigned: what it
 * writes to configuration space is seen on its way to the device.
 */
#include <linux/export.h>
#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/logic_iomem.h>
#include <linux/pci.h>
#include <linux/spinlock.h>

#include "port_strings.h"
#include "virt-pci.h"

#define UM_PCI_PORTS_START	0xefe00000
#define UM_PCI_PORTS		0x10000
/* Lower ports are those of a PC's own devices. */
#define UM_PCI_FIRST_PORT	0x1000
#define UM_PCI_MAX_PORT_BARS	16

void __iomem *um_pci_iobase;
EXPORT_SYMBOL(um_pci_iobase);

static DEFINE_RAW_SPINLOCK(um_pci_ports_lock);
static struct um_pci_port_bar {
	struct um_pci_device *dev;
	u8 bar;
	/* 0 while the BAR holds nothing of use. */
	u32 base;
} um_pci_port_bars[UM_PCI_MAX_PORT_BARS];

/* The BAR that a port belongs to: the nearest below it. */
static struct um_pci_device *um_pci_port_find(unsigned int port, int *bar,
					      unsigned int *offset)
{
	struct um_pci_device *dev = NULL;
	unsigned long flags;
	u32 best = 0;
	int i;

	raw_spin_lock_irqsave(&um_pci_ports_lock, flags);
	for (i = 0; i < ARRAY_SIZE(um_pci_port_bars); i++) {
		struct um_pci_port_bar *entry = &um_pci_port_bars[i];

		if (entry->base <= best || entry->base > port)
			continue;
		best = entry->base;
		dev = entry->dev;
		*bar = entry->bar;
		*offset = port - best;
	}
	raw_spin_unlock_irqrestore(&um_pci_ports_lock, flags);
	return dev;
}

static unsigned long um_pci_port_read(void *priv, unsigned int port, int size)
{
	struct um_pci_device *dev;
	unsigned int offset;
	int bar;

	dev = um_pci_port_find(port, &bar, &offset);
	return dev ? dev->ops->bar_read(dev, bar, offset, size) : ~0UL;
}

static void um_pci_port_write(void *priv, unsigned int port, int size,
			      unsigned long val)
{
	struct um_pci_device *dev;
	unsigned int offset;
	int bar;

	dev = um_pci_port_find(port, &bar, &offset);
	if (dev)
		dev->ops->bar_write(dev, bar, offset, size, val);
}

/* rep ins and rep outs: few messages where the device's back end can, else one for each access. */
static void um_pci_port_string(unsigned long port, void *buffer,
			       unsigned int count, int size, bool write)
{
	struct um_pci_device *dev;
	unsigned int offset;
	u8 *at = buffer;
	int bar;

	dev = um_pci_port_find(port, &bar, &offset);
	if (dev && dev->ops->bar_string) {
		dev->ops->bar_string(dev, bar, offset, buffer, count, size,
				     write);
		return;
	}
	for (; count; count--, at += size) {
		unsigned long val = ~0UL;

		if (write) {
			val = 0;
			memcpy(&val, at, size);
			um_pci_port_write(NULL, port, size, val);
		} else {
			val = um_pci_port_read(NULL, port, size);
			memcpy(at, &val, size);
		}
	}
}

void um_pci_insw(unsigned long port, void *buffer, unsigned int count)
{
	um_pci_port_string(port, buffer, count, 2, false);
}
EXPORT_SYMBOL(um_pci_insw);

void um_pci_insl(unsigned long port, void *buffer, unsigned int count)
{
	um_pci_port_string(port, buffer, count, 4, false);
}
EXPORT_SYMBOL(um_pci_insl);

void um_pci_outsw(unsigned long port, const void *buffer, unsigned int count)
{
	um_pci_port_string(port, (void *)buffer, count, 2, true);
}
EXPORT_SYMBOL(um_pci_outsw);

void um_pci_outsl(unsigned long port, const void *buffer, unsigned int count)
{
	um_pci_port_string(port, (void *)buffer, count, 4, true);
}
EXPORT_SYMBOL(um_pci_outsl);

static const struct logic_iomem_ops um_pci_port_ops = {
	.read = um_pci_port_read,
	.write = um_pci_port_write,
};

static long um_pci_ports_map(unsigned long offset, size_t size,
			     const struct logic_iomem_ops **ops, void **priv)
{
	*ops = &um_pci_port_ops;
	*priv = NULL;
	return offset;
}

static const struct logic_iomem_region_ops um_pci_ports_region = {
	.map = um_pci_ports_map,
};

static struct resource um_pci_ports_iomem = {
	.name = "PCI I/O ports",
	.start = UM_PCI_PORTS_START,
	.end = UM_PCI_PORTS_START + UM_PCI_PORTS - 1,
	.flags = IORESOURCE_MEM,
};

static struct resource um_pci_ports_window = {
	.name = "PCI I/O ports",
	.start = UM_PCI_FIRST_PORT,
	.end = UM_PCI_PORTS - 1,
	.flags = IORESOURCE_IO,
};

/* The kernel has written a device's configuration space. */
void um_pci_ports_written(struct um_pci_device *dev, unsigned int offset,
			  int size, unsigned long val)
{
	struct um_pci_port_bar *entry = NULL;
	u32 base = val & PCI_BASE_ADDRESS_IO_MASK;
	unsigned long flags;
	int bar, i;

	if (size != 4 || offset % 4 || offset < PCI_BASE_ADDRESS_0 ||
	    offset > PCI_BASE_ADDRESS_5)
		return;
	bar = (offset - PCI_BASE_ADDRESS_0) / 4;
	if (!(val & PCI_BASE_ADDRESS_SPACE_IO) ||
	    base < UM_PCI_FIRST_PORT || base >= UM_PCI_PORTS)
		base = 0;

	raw_spin_lock_irqsave(&um_pci_ports_lock, flags);
	for (i = 0; i < ARRAY_SIZE(um_pci_port_bars); i++) {
		struct um_pci_port_bar *e = &um_pci_port_bars[i];

		if (e->dev == dev && e->bar == bar) {
			entry = e;
			break;
		}
		if (!e->dev && !entry)
			entry = e;
	}
	if (entry && (base || entry->dev))
		*entry = (struct um_pci_port_bar) { dev, bar, base };
	raw_spin_unlock_irqrestore(&um_pci_ports_lock, flags);
	if (!entry && base)
		pr_err("virt-pci: more I/O BARs than %d; ports from 0x%x read as ones\n",
		       UM_PCI_MAX_PORT_BARS, base);
}

void um_pci_ports_forget(struct um_pci_device *dev)
{
	unsigned long flags;
	int i;

	raw_spin_lock_irqsave(&um_pci_ports_lock, flags);
	for (i = 0; i < ARRAY_SIZE(um_pci_port_bars); i++)
		if (um_pci_port_bars[i].dev == dev)
			um_pci_port_bars[i] = (struct um_pci_port_bar) { };
	raw_spin_unlock_irqrestore(&um_pci_ports_lock, flags);
}

/* Gives the bridge its window of ports. */
void __init um_pci_ports_init(struct pci_host_bridge *bridge)
{
	if (WARN_ON(logic_iomem_add_region(&um_pci_ports_iomem,
					   &um_pci_ports_region)))
		return;
	um_pci_iobase = ioremap(UM_PCI_PORTS_START, UM_PCI_PORTS);
	if (WARN_ON(!um_pci_iobase))
		return;
	WARN_ON(request_resource(&ioport_resource, &um_pci_ports_window));
	pci_add_resource(&bridge->windows, &um_pci_ports_window);
}
