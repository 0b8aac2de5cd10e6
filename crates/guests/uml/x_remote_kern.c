// SPDX-License-Identifier: GPL-2.0-only
/*
 * PCI devices of a user-mode kernel that are QEMU's own models, in a QEMU of
 * the machine x-remote (its include/hw/remote/mpqemu-link.h).
 *
 *	linux x_remote.device=fd:9 x_remote.device=fd:10 ...
 *
 * Each descriptor is one end of a UNIX stream socket pair whose other end the
 * QEMU has as its x-remote-object's fd. It is there for comparison: the same
 * kernel and driver on QEMU's model of an adapter and on Nicety's.
 *
 * - INTx only: the machine refuses message-signalled interrupts, so their
 *   capabilities are hidden from the guest.
 * - Writes to BARs are answered, and are sent without waiting for that; answers
 *   are taken before the next read, or when many are owed. vmxnet3 is the
 *   exception: its driver frees what a command names right after the write of
 *   the command, which is in BAR 1; doorbells and masks are in BAR 0.
 * - A BAR is accessed by its address in QEMU's memory, where the guest's writes
 *   to configuration space have put it.
 */
#include <linux/init.h>
#include <linux/irq.h>
#include <linux/kernel.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/string.h>

#include <as-layout.h>
#include <init.h>
#include <irq_kern.h>
#include <mem_user.h>

#include "pci_socket.h"
#include "virt-pci.h"

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "x_remote."

enum xr_command {
	XR_SYNC_SYSMEM,
	XR_RET,
	XR_CONFIG_WRITE,
	XR_CONFIG_READ,
	XR_BAR_WRITE,
	XR_BAR_READ,
	XR_SET_IRQFD,
	XR_RESET,
};

#define XR_TIMEOUT_MS	5000
#define XR_MAX_OWED	64
#define XR_MEMORY_END	(0xf0000000UL - SZ_2M)
#define XR_MAX_FDS	8

struct xr_header {
	s32 command;
	u32 pad;
	u64 size;
};

struct xr_config {
	struct xr_header header;
	u32 addr;
	u32 val;
	s32 len;
} __packed;

struct xr_bar {
	struct xr_header header;
	u64 addr;
	u64 val;
	u32 size;
	u8 memory;
	u8 pad[3];
};

struct xr_ret {
	struct xr_header header;
	u64 val;
};

struct xr_device {
	struct um_pci_device pdev;
	struct list_head list;
	const char *name;
	raw_spinlock_t lock;
	int fd;
	bool dead;
	bool wait;
	unsigned int owed;
	int irq_fd;
	int resample_fd;
	u32 bars[PCI_STD_NUM_BARS];
	u8 hidden[2];
};

static LIST_HEAD(xr_devices);

static struct xr_device *to_xr(struct um_pci_device *pdev)
{
	return container_of(pdev, struct xr_device, pdev);
}

static int xr_fail(struct xr_device *dev, int err)
{
	if (!dev->dead)
		pr_err("x_remote: %s: QEMU does not answer (error %d); the device is gone, its registers read as ones\n",
		       dev->name, err);
	dev->dead = true;
	pci_socket_shutdown(dev->fd);
	return -EIO;
}

static int xr_send(struct xr_device *dev, void *message, u32 size,
		   enum xr_command command, const int *fds, int nfds)
{
	struct pci_socket_wait wait = { .timeout_ms = XR_TIMEOUT_MS };
	struct xr_header *header = message;
	int err;

	if (dev->dead)
		return -EIO;
	*header = (struct xr_header) {
		.command = command,
		.size = size - sizeof(*header),
	};
	err = pci_socket_send(dev->fd, message, size, NULL, 0, fds, nfds,
			      &wait);
	return err ? xr_fail(dev, err) : 0;
}

static int xr_answer(struct xr_device *dev, u64 *val)
{
	struct pci_socket_wait wait = { .timeout_ms = XR_TIMEOUT_MS };
	struct xr_ret ret;
	u32 have = 0;
	int n;

	while (have < sizeof(ret)) {
		n = pci_socket_recv(dev->fd, (u8 *)&ret + have,
				    sizeof(ret) - have, NULL, &wait);
		if (n < 0)
			return xr_fail(dev, n);
		have += n;
	}
	if (ret.header.command != XR_RET || ret.header.size != sizeof(u64))
		return xr_fail(dev, -EPROTO);
	*val = ret.val;
	return 0;
}

static int xr_settle(struct xr_device *dev)
{
	u64 ignored;
	int err = 0;

	while (dev->owed && !err) {
		err = xr_answer(dev, &ignored);
		dev->owed--;
	}
	return err;
}

static int xr_call(struct xr_device *dev, void *message, u32 size,
		   enum xr_command command, u64 *val)
{
	int err = xr_settle(dev);

	if (!err)
		err = xr_send(dev, message, size, command, NULL, 0);
	return err ? err : xr_answer(dev, val);
}

/* A dword of configuration space; QEMU wants all four bytes to be within it. */
static u32 xr_config_dword(struct xr_device *dev, unsigned int offset)
{
	struct xr_config message = { .addr = offset, .len = 4 };
	u64 val;
	int i;

	if (xr_call(dev, &message, sizeof(message), XR_CONFIG_READ, &val))
		return ~0U;
	for (i = 0; i < ARRAY_SIZE(dev->hidden); i++)
		if (dev->hidden[i] && offset == dev->hidden[i])
			val &= ~0xffULL;
	return val;
}

static unsigned long xr_cfgspace_read(struct um_pci_device *pdev,
				      unsigned int offset, int size)
{
	struct xr_device *dev = to_xr(pdev);
	unsigned long flags;
	u64 val;

	if (offset + size > PCI_CFG_SPACE_SIZE || size > 4)
		return ~0UL;
	raw_spin_lock_irqsave(&dev->lock, flags);
	val = xr_config_dword(dev, offset & ~3) >> (8 * (offset & 3));
	raw_spin_unlock_irqrestore(&dev->lock, flags);
	return val;
}

static void xr_cfgspace_write(struct um_pci_device *pdev, unsigned int offset,
			      int size, unsigned long val)
{
	struct xr_device *dev = to_xr(pdev);
	struct xr_config message = { .addr = offset, .val = val, .len = size };
	unsigned long flags;
	u64 ignored;

	if (offset + sizeof(u32) > PCI_CFG_SPACE_SIZE)
		return;
	raw_spin_lock_irqsave(&dev->lock, flags);
	xr_call(dev, &message, sizeof(message), XR_CONFIG_WRITE, &ignored);
	if (offset >= PCI_BASE_ADDRESS_0 && offset <= PCI_BASE_ADDRESS_5 &&
	    size == 4 && offset % 4 == 0)
		dev->bars[(offset - PCI_BASE_ADDRESS_0) / 4] = val;
	raw_spin_unlock_irqrestore(&dev->lock, flags);
}

static struct xr_bar xr_bar_message(struct xr_device *dev, int bar,
				    unsigned int offset, int size)
{
	u32 base = dev->bars[bar];
	bool io = base & PCI_BASE_ADDRESS_SPACE_IO;

	return (struct xr_bar) {
		.addr = (base & (io ? PCI_BASE_ADDRESS_IO_MASK :
				 PCI_BASE_ADDRESS_MEM_MASK)) + offset,
		.size = size,
		.memory = !io,
	};
}

static unsigned long xr_bar_read(struct um_pci_device *pdev, int bar,
				 unsigned int offset, int size)
{
	struct xr_device *dev = to_xr(pdev);
	struct xr_bar message;
	unsigned long flags;
	u64 val;

	raw_spin_lock_irqsave(&dev->lock, flags);
	message = xr_bar_message(dev, bar, offset, size);
	if (xr_call(dev, &message, sizeof(message), XR_BAR_READ, &val))
		val = ~0ULL;
	raw_spin_unlock_irqrestore(&dev->lock, flags);
	return val;
}

static void xr_bar_write(struct um_pci_device *pdev, int bar,
			 unsigned int offset, int size, unsigned long val)
{
	struct xr_device *dev = to_xr(pdev);
	struct xr_bar message;
	unsigned long flags;

	raw_spin_lock_irqsave(&dev->lock, flags);
	message = xr_bar_message(dev, bar, offset, size);
	message.val = val;
	if (!xr_send(dev, &message, sizeof(message), XR_BAR_WRITE, NULL, 0))
		dev->owed++;
	if ((dev->wait && bar) || !message.memory || dev->owed >= XR_MAX_OWED)
		xr_settle(dev);
	raw_spin_unlock_irqrestore(&dev->lock, flags);
}

/* Blocks go as single registers: the protocol has nothing larger. */
static void xr_bar_copy_from(struct um_pci_device *pdev, int bar, void *buffer,
			     unsigned int offset, int size)
{
	u8 *to = buffer;

	for (; size >= 4 && offset % 4 == 0; size -= 4, offset += 4, to += 4) {
		u32 val = xr_bar_read(pdev, bar, offset, 4);

		memcpy(to, &val, 4);
	}
	for (; size > 0; size--)
		*to++ = xr_bar_read(pdev, bar, offset++, 1);
}

static void xr_bar_copy_to(struct um_pci_device *pdev, int bar,
			   unsigned int offset, const void *buffer, int size)
{
	const u8 *from = buffer;

	for (; size >= 4 && offset % 4 == 0;
	     size -= 4, offset += 4, from += 4) {
		u32 val;

		memcpy(&val, from, 4);
		xr_bar_write(pdev, bar, offset, 4, val);
	}
	for (; size > 0; size--)
		xr_bar_write(pdev, bar, offset++, 1, *from++);
}

static void xr_bar_set(struct um_pci_device *pdev, int bar,
		       unsigned int offset, u8 value, int size)
{
	u32 val = value * 0x01010101U;

	for (; size >= 4 && offset % 4 == 0; size -= 4, offset += 4)
		xr_bar_write(pdev, bar, offset, 4, val);
	for (; size > 0; size--)
		xr_bar_write(pdev, bar, offset++, 1, value);
}

static const struct um_pci_ops xr_ops = {
	.cfgspace_read	= xr_cfgspace_read,
	.cfgspace_write	= xr_cfgspace_write,
	.bar_read	= xr_bar_read,
	.bar_write	= xr_bar_write,
	.bar_copy_from	= xr_bar_copy_from,
	.bar_copy_to	= xr_bar_copy_to,
	.bar_set	= xr_bar_set,
};

static irqreturn_t xr_interrupt(int irq, void *opaque)
{
	struct xr_device *dev = opaque;
	int ret = pci_socket_drain(dev->irq_fd);

	if (ret > 0) {
		/* None yet while the device is being registered. */
		if (dev->pdev.irq)
			generic_handle_irq(dev->pdev.irq);
	} else if (ret < 0) {
		unsigned long flags;

		raw_spin_lock_irqsave(&dev->lock, flags);
		xr_fail(dev, ret);
		raw_spin_unlock_irqrestore(&dev->lock, flags);
	}
	return IRQ_HANDLED;
}

static void xr_intx_mask(struct irq_data *data)
{
	/* QEMU sends once, and again when it is told to look again. */
}

static void xr_intx_unmask(struct irq_data *data)
{
	struct um_pci_device *pdev = irq_data_get_irq_chip_data(data);

	pci_socket_kick(to_xr(pdev)->resample_fd, 1);
}

static struct irq_chip xr_intx_chip = {
	.name = "x-remote INTx",
	.irq_mask = xr_intx_mask,
	.irq_unmask = xr_intx_unmask,
};

static int xr_share_memory(struct xr_device *dev)
{
	struct {
		struct xr_header header;
		u64 gpas[XR_MAX_FDS];
		u64 sizes[XR_MAX_FDS];
		u64 offsets[XR_MAX_FDS];
	} message = { };
	unsigned long image = uml_reserved - uml_physmem;
	unsigned long long offset;
	int fd = phys_mapping(image, &offset);

	if (fd < 0 || physmem_size > XR_MEMORY_END)
		return -E2BIG;
	message.gpas[0] = image;
	message.sizes[0] = physmem_size - image;
	message.offsets[0] = offset;
	return xr_send(dev, &message, sizeof(message), XR_SYNC_SYSMEM, &fd, 1);
}

static int xr_connect_intx(struct xr_device *dev)
{
	struct xr_header message;
	int fds[2], err;

	err = pci_socket_pipe(&dev->irq_fd, &fds[0], true);
	if (err)
		return err;
	err = pci_socket_pipe(&fds[1], &dev->resample_fd, true);
	if (err)
		return err;
	err = um_request_irq(UM_IRQ_ALLOC, dev->irq_fd, IRQ_READ, xr_interrupt,
			     0, "x-remote", dev);
	if (err < 0)
		return err;
	err = xr_send(dev, &message, sizeof(message), XR_SET_IRQFD, fds, 2);
	pci_socket_close(fds[0]);
	pci_socket_close(fds[1]);
	return err;
}

static void xr_hide(struct xr_device *dev)
{
	int limit = 48, hidden = 0;
	u32 at, entry;

	if (!(xr_config_dword(dev, PCI_COMMAND) >> 16 & PCI_STATUS_CAP_LIST))
		return;
	at = xr_config_dword(dev, PCI_CAPABILITY_LIST) & 0xfc;
	while (at >= 0x40 && limit-- && hidden < ARRAY_SIZE(dev->hidden)) {
		entry = xr_config_dword(dev, at);
		if ((entry & 0xff) == PCI_CAP_ID_MSI ||
		    (entry & 0xff) == PCI_CAP_ID_MSIX)
			dev->hidden[hidden++] = at;
		at = entry >> 8 & 0xfc;
	}
}

static int xr_attach(struct xr_device *dev)
{
	u32 id;
	int err;

	if (strncmp(dev->name, "fd:", 3) || kstrtoint(dev->name + 3, 10, &dev->fd))
		dev->fd = pci_socket_connect(dev->name, XR_TIMEOUT_MS);
	if (dev->fd < 0)
		return dev->fd;
	err = pci_socket_adopt(dev->fd, XR_TIMEOUT_MS);
	if (!err)
		err = xr_share_memory(dev);
	if (!err)
		err = xr_connect_intx(dev);
	if (err)
		return err;

	id = xr_config_dword(dev, PCI_VENDOR_ID);
	if (dev->dead)
		return -EIO;
	dev->wait = (id & 0xffff) == PCI_VENDOR_ID_VMWARE;
	xr_hide(dev);
	pr_info("x_remote: %s: %04x:%04x\n", dev->name, id & 0xffff, id >> 16);
	dev->pdev.ops = &xr_ops;
	dev->pdev.irq_chip = &xr_intx_chip;
	return um_pci_device_register(&dev->pdev);
}

static int xr_cmdline_set(const char *name, const struct kernel_param *kp)
{
	struct xr_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);

	if (!dev)
		return -ENOMEM;
	dev->name = kstrdup(name, GFP_KERNEL);
	if (!dev->name) {
		kfree(dev);
		return -ENOMEM;
	}
	raw_spin_lock_init(&dev->lock);
	list_add_tail(&dev->list, &xr_devices);
	return 0;
}

static const struct kernel_param_ops xr_cmdline_ops = {
	.set = xr_cmdline_set,
};

device_param_cb(device, &xr_cmdline_ops, NULL, 0);
__uml_help(xr_cmdline_ops,
"x_remote.device=fd:<number>\n"
"    A PCI device that QEMU serves with -machine x-remote and\n"
"    -object x-remote-object, at the other end of this inherited socket.\n"
"    May be given several times.\n\n"
);

static int __init xr_init(void)
{
	struct xr_device *dev;
	int err;

	list_for_each_entry(dev, &xr_devices, list) {
		err = xr_attach(dev);
		if (err)
			pr_err("x_remote: %s: not attached: error %d\n",
			       dev->name, err);
	}
	return 0;
}
late_initcall(xr_init);
