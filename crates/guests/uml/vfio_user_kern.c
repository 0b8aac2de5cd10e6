// SPDX-License-Identifier: GPL-2.0-only
/*
 * PCI devices of a user-mode kernel behind vfio-user sockets.
 *
 *	linux vfio_user.device=vm1.sock vfio_user.device=vm2.sock ...
 *	echo vm1.sock >/sys/module/vfio_user/parameters/device
 *
 * Each socket is a server with one PCI function, in the order given. What is
 * written later attaches a device that was not there, or one whose server has
 * gone and come back. The
 * function's driver is whatever this kernel has for its identity; to the server
 * this kernel is what QEMU is: it maps its memory by file, reads and writes
 * regions, and connects interrupts.
 *
 * - Register writes are posted (no reply) to memory BARs, unless some part of
 *   the device can be mapped. That is QEMU's rule too, and servers rely on it:
 *   one whose guest must not run ahead of a write offers a page to be mapped.
 *   QEMU decides for a device as a whole; here vmxnet3's doorbells and masks, and
 *   the 82574's and 82576's registers, are posted all the same (vfu_posts()).
 * - Parts that can be mapped are plain loads and stores.
 * - The MSI-X table belongs to the device and is written there; it is looked at
 *   on the way (vfio_user_irq.c).
 * - With time-travel=ext nothing is posted and nothing is mapped: a server that
 *   does all that follows from an access before it answers makes a boot that can
 *   be repeated.
 */
#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/unaligned.h>
#include <linux/virtio.h>

#include <as-layout.h>
#include <init.h>
#include <irq_kern.h>
#include <mem_user.h>

#include "pci_socket.h"
#include "vfio_user_dev.h"

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "vfio_user."

/* What is above belongs to PCI: ports, configuration space, BARs. */
#define VFU_MEMORY_END	(0xf0000000UL - SZ_2M)

#define VFU_DEVICE_RESET	1
#define VFU_DEVICE_PCI		2

/* Device and vendor, as the first word of configuration space has them. */
#define VFU_ID_VMXNET3		0x07b015adU
#define VFU_ID_82574		0x10d38086U
#define VFU_ID_82576		0x10c98086U
#define VFU_ID_RTL8029		0x802910ecU
#define VFU_ID_PCNET		0x20001022U

/* AMD 19436, "I/O Resources": ports as words, and RAP as a double word. */
#define VFU_PCNET_RDP		0x10
#define VFU_PCNET_RAP		0x12
#define VFU_PCNET_RAP_DWORD	0x14
/* CSR0: INIT and STOP. */
#define VFU_PCNET_WAITED	0x0005
/* It is not known which register RAP chooses. */
#define VFU_PCNET_NONE		0xff

/* QEMU's time-out, too. */
unsigned int vfu_timeout_ms = 5000;
module_param_named(timeout_ms, vfu_timeout_ms, uint, 0444);
__uml_help(vfu_timeout_ms,
"vfio_user.timeout_ms=<milliseconds>\n"
"    How long a vfio-user server may take to answer before its device is\n"
"    given up. The default is 5000.\n\n"
);

/* All devices' together; those that two processors count at once may miss one. */
module_param_named(messages, vfu_messages, ulong, 0444);
module_param_named(waits, vfu_waits, ulong, 0444);

static bool vfu_msi = true, vfu_msix = true;
module_param_named(msi, vfu_msi, bool, 0444);
module_param_named(msix, vfu_msix, bool, 0444);
__uml_help(vfu_msix,
"vfio_user.msix=0, vfio_user.msi=0\n"
"    Hides a device's MSI-X, or MSI, capability, so that its driver takes what\n"
"    is left.\n\n"
);

/* Where the kernel's time comes from a calendar: see changes-time. */
extern void (*time_travel_look)(void);

static LIST_HEAD(vfu_devices);
/* The devices of the command line have been attached. */
static bool vfu_running;

static struct vfu_device *to_vfu(struct um_pci_device *pdev)
{
	return container_of(pdev, struct vfu_device, pdev);
}

static bool vfu_within(struct vfu_device *dev, int region, u64 offset, u64 size)
{
	struct vfu_region *r = &dev->regions[region];

	return size <= r->size && offset <= r->size - size;
}

/* Where the bytes are mapped, or NULL. */
static void *vfu_mapped(struct vfu_device *dev, int bar, u64 offset, u64 size)
{
	struct vfu_region *region = &dev->regions[bar];
	int i;

	/* Without the lock: areas stay as they are until the device goes. */
	if (READ_ONCE(dev->dead))
		return NULL;
	for (i = 0; i < region->nr_areas; i++) {
		struct vfu_area *area = &region->areas[i];

		if (offset >= area->offset && size <= area->size &&
		    offset - area->offset <= area->size - size)
			return area->at + (offset - area->offset);
	}
	return NULL;
}

/* Registers are little-endian, as this machine is. */
static unsigned long vfu_load(const void *at, int size)
{
	switch (size) {
	case 1:
		return READ_ONCE(*(const u8 *)at);
	case 2:
		return READ_ONCE(*(const u16 *)at);
	case 4:
		return READ_ONCE(*(const u32 *)at);
	default:
		return READ_ONCE(*(const u64 *)at);
	}
}

static void vfu_store(void *at, int size, unsigned long val)
{
	switch (size) {
	case 1:
		WRITE_ONCE(*(u8 *)at, val);
		break;
	case 2:
		WRITE_ONCE(*(u16 *)at, val);
		break;
	case 4:
		WRITE_ONCE(*(u32 *)at, val);
		break;
	default:
		WRITE_ONCE(*(u64 *)at, val);
		break;
	}
}

/* All ones if it cannot be read. */
static unsigned long vfu_read(struct vfu_device *dev, int region, u64 offset,
			      int size)
{
	unsigned long flags;
	u64 val = 0;

	if (!vfu_within(dev, region, offset, size))
		return ~0UL;
	raw_spin_lock_irqsave(&dev->lock, flags);
	if (vfu_region_read(dev, region, offset, &val, size))
		val = ~0ULL;
	raw_spin_unlock_irqrestore(&dev->lock, flags);
	return val;
}

static unsigned long vfu_cfgspace_read(struct um_pci_device *pdev,
				       unsigned int offset, int size)
{
	struct vfu_device *dev = to_vfu(pdev);
	unsigned long val = vfu_read(dev, VFU_REGION_CONFIG, offset, size);
	int i;

	/* A capability of type 0 is none. */
	for (i = 0; i < ARRAY_SIZE(dev->hidden); i++)
		if (dev->hidden[i] && dev->hidden[i] >= offset &&
		    dev->hidden[i] - offset < size)
			val &= ~(0xffUL << 8 * (dev->hidden[i] - offset));
	return val;
}

static void vfu_cfgspace_write(struct um_pci_device *pdev, unsigned int offset,
			       int size, unsigned long val)
{
	struct vfu_device *dev = to_vfu(pdev);
	__le64 data = cpu_to_le64(val);
	unsigned long flags;

	if (!vfu_within(dev, VFU_REGION_CONFIG, offset, size))
		return;
	raw_spin_lock_irqsave(&dev->lock, flags);
	vfu_region_write(dev, VFU_REGION_CONFIG, offset, &data, size, false);
	vfu_irq_config_written(dev, offset, size, val);
	raw_spin_unlock_irqrestore(&dev->lock, flags);
}

/*
 * Writes to a PCnet's ports that need no wait. RAP chooses a register and does
 * nothing else. CSR0 acknowledges, enables and rings; CSR3 masks. What stops or
 * initializes the chip is waited for, as all else is: drivers free buffers behind
 * it, or fill them.
 */
static bool vfu_pcnet_posts(struct vfu_device *dev, int bar,
			    unsigned int offset, int size, unsigned long val)
{
	if (bar != 0) {
		dev->pcnet_rap = VFU_PCNET_NONE;
		return false;
	}
	if ((offset == VFU_PCNET_RAP && size == 2) ||
	    (offset == VFU_PCNET_RAP_DWORD && size == 4)) {
		dev->pcnet_rap = val & 0x7f;
		return true;
	}
	if (offset != VFU_PCNET_RDP)
		return false;
	return dev->pcnet_rap == 3 ||
	       (dev->pcnet_rap == 0 && !(val & VFU_PCNET_WAITED));
}

static unsigned long vfu_bar_read(struct um_pci_device *pdev, int bar,
				  unsigned int offset, int size)
{
	struct vfu_device *dev = to_vfu(pdev);
	void *at = vfu_mapped(dev, bar, offset, size);

	/* A reset, which sets RAP, is a read. */
	if (dev->pcnet && offset != VFU_PCNET_RDP)
		dev->pcnet_rap = VFU_PCNET_NONE;
	return at ? vfu_load(at, size) : vfu_read(dev, bar, offset, size);
}

static void vfu_bar_write(struct um_pci_device *pdev, int bar,
			  unsigned int offset, int size, unsigned long val)
{
	struct vfu_device *dev = to_vfu(pdev);
	void *at = vfu_mapped(dev, bar, offset, size);
	bool table = bar == dev->table_bar && offset >= dev->table_offset &&
		     offset - dev->table_offset < dev->table_size;
	__le64 data = cpu_to_le64(val);
	unsigned long flags;
	bool posted;

	/* The table of interrupts is ours too, even if a server maps its page. */
	if (at && !table) {
		vfu_store(at, size, val);
		return;
	}
	if (!vfu_within(dev, bar, offset, size))
		return;
	raw_spin_lock_irqsave(&dev->lock, flags);
	posted = dev->regions[bar].posted;
	if (dev->pcnet)
		posted |= vfu_pcnet_posts(dev, bar, offset, size, val);
	if (um_irq_timetravel_handler_used())
		posted = false;
	vfu_region_write(dev, bar, offset, &data, size, posted);
	if (table)
		vfu_irq_table_written(dev, offset - dev->table_offset, size,
				      val);
	raw_spin_unlock_irqrestore(&dev->lock, flags);
}

static void vfu_bar_copy_from(struct um_pci_device *pdev, int bar, void *buffer,
			      unsigned int offset, int size)
{
	struct vfu_device *dev = to_vfu(pdev);
	void *at = vfu_mapped(dev, bar, offset, size);
	unsigned long flags;

	if (at) {
		memcpy(buffer, at, size);
		return;
	}
	memset(buffer, 0xff, size);
	if (!vfu_within(dev, bar, offset, size))
		return;
	while (size > 0) {
		int part = min(size, VFU_MAX_DATA), err;

		raw_spin_lock_irqsave(&dev->lock, flags);
		err = vfu_region_read(dev, bar, offset, buffer, part);
		raw_spin_unlock_irqrestore(&dev->lock, flags);
		if (err)
			return;
		buffer += part;
		offset += part;
		size -= part;
	}
}

static void vfu_bar_copy_to(struct um_pci_device *pdev, int bar,
			    unsigned int offset, const void *buffer, int size)
{
	struct vfu_device *dev = to_vfu(pdev);
	void *at = vfu_mapped(dev, bar, offset, size);
	unsigned long flags;

	if (at) {
		memcpy(at, buffer, size);
		return;
	}
	if (!vfu_within(dev, bar, offset, size))
		return;
	while (size > 0) {
		int part = min(size, VFU_MAX_DATA), err;

		raw_spin_lock_irqsave(&dev->lock, flags);
		err = vfu_region_write(dev, bar, offset, buffer, part,
				       dev->regions[bar].posted);
		raw_spin_unlock_irqrestore(&dev->lock, flags);
		if (err)
			return;
		buffer += part;
		offset += part;
		size -= part;
	}
}

/* A string of accesses to one port: few messages if the server takes that. */
static void vfu_bar_string(struct um_pci_device *pdev, int bar,
			   unsigned int offset, void *buffer,
			   unsigned int count, int size, bool write)
{
	struct vfu_device *dev = to_vfu(pdev);
	unsigned int most = dev->strings ? VFU_MAX_DATA / size : 1;
	unsigned long flags;

	if (!write)
		memset(buffer, 0xff, count * size);
	if (!vfu_within(dev, bar, offset, size))
		return;
	while (count) {
		unsigned int now = min(count, most);
		int region = bar, err;

		if (now > 1)
			region |= size << VFU_STRING_SHIFT;
		raw_spin_lock_irqsave(&dev->lock, flags);
		if (write)
			err = vfu_region_write(dev, region, offset, buffer,
					       now * size,
					       dev->regions[bar].posted);
		else
			err = vfu_region_read(dev, region, offset, buffer,
					      now * size);
		raw_spin_unlock_irqrestore(&dev->lock, flags);
		if (err)
			return;
		buffer += now * size;
		count -= now;
	}
}

static void vfu_bar_set(struct um_pci_device *pdev, int bar,
			unsigned int offset, u8 value, int size)
{
	u8 bytes[256];

	memset(bytes, value, sizeof(bytes));
	while (size > 0) {
		int part = min_t(int, size, sizeof(bytes));

		vfu_bar_copy_to(pdev, bar, offset, bytes, part);
		offset += part;
		size -= part;
	}
}

static const struct um_pci_ops vfu_ops = {
	.cfgspace_read	= vfu_cfgspace_read,
	.cfgspace_write	= vfu_cfgspace_write,
	.bar_read	= vfu_bar_read,
	.bar_write	= vfu_bar_write,
	.bar_copy_from	= vfu_bar_copy_from,
	.bar_copy_to	= vfu_bar_copy_to,
	.bar_set	= vfu_bar_set,
	.bar_string	= vfu_bar_string,
};

static u32 vfu_config(struct vfu_device *dev, unsigned int offset, int size)
{
	return vfu_read(dev, VFU_REGION_CONFIG, offset, size);
}

static u8 vfu_find_capability(struct vfu_device *dev, u8 wanted)
{
	int limit = 48;
	u8 at;

	if (!(vfu_config(dev, PCI_STATUS, 2) & PCI_STATUS_CAP_LIST))
		return 0;
	at = vfu_config(dev, PCI_CAPABILITY_LIST, 1) & ~3;
	/* The longest of the two that are looked for has 24 bytes. */
	while (at >= 0x40 && at <= PCI_CFG_SPACE_SIZE - 24 && limit--) {
		if (vfu_config(dev, at, 1) == wanted)
			return at;
		at = vfu_config(dev, at + 1, 1) & ~3;
	}
	return 0;
}

/* Whether the list of capabilities ends: drivers follow it without a bound. */
static bool vfu_list_ends(struct vfu_device *dev)
{
	int limit = 48;
	u8 at;

	if (!(vfu_config(dev, PCI_STATUS, 2) & PCI_STATUS_CAP_LIST))
		return true;
	at = vfu_config(dev, PCI_CAPABILITY_LIST, 1) & ~3;
	while (at >= 0x40 && limit--)
		at = vfu_config(dev, at + 1, 1) & ~3;
	return limit >= 0;
}

static void vfu_read_config(struct vfu_device *dev)
{
	u32 table, i;

	for (i = 0; i < sizeof(dev->config); i += 4)
		put_unaligned_le32(vfu_config(dev, i, 4), dev->config + i);
	if (dev->irq_count[VFU_IRQ_MSI])
		dev->msi_cap = vfu_find_capability(dev, PCI_CAP_ID_MSI);
	if (dev->irq_count[VFU_IRQ_MSIX])
		dev->msix_cap = vfu_find_capability(dev, PCI_CAP_ID_MSIX);
	if (!vfu_msi)
		swap(dev->msi_cap, dev->hidden[0]);
	if (!vfu_msix)
		swap(dev->msix_cap, dev->hidden[1]);
	dev->table_bar = -1;
	if (!dev->msix_cap)
		return;
	table = vfu_config(dev, dev->msix_cap + PCI_MSIX_TABLE, 4);
	dev->table_bar = table & PCI_MSIX_TABLE_BIR;
	dev->table_offset = table & PCI_MSIX_TABLE_OFFSET;
	dev->table_size = dev->irq_count[VFU_IRQ_MSIX] * PCI_MSIX_ENTRY_SIZE;
}

/*
 * Whether nobody waits until a write to a memory BAR is done, or to the
 * RTL8029's ports: that one does no DMA, so that only a read, which is ordered
 * behind the writes, or an interrupt, which comes when it likes, tells of them.
 *
 * vmxnet3's driver frees what a command names right after the write of the
 * command, which is in BAR 1 and is waited for. BAR 0 has doorbells, whose
 * rings go no earlier than a command that quiesces the device has been
 * answered, and interrupt masks, which are a matter between interrupts and
 * doorbells. Posted, they are in the order in which they were written, and done
 * before a later command, read or unmasking of INTx. Only a store through a
 * mapping could overtake them: so none of those two BARs may be mapped.
 *
 * Of Intel's chips the pages of the rings can be mapped, apart from the switches
 * of DMA (CTRL, RCTL, TCTL), after which their drivers read a register before
 * they touch a ring: e1000e_down(), igb_down().
 */
static bool vfu_posts(struct vfu_device *dev, int bar, bool mappable, u32 id)
{
	if (um_irq_timetravel_handler_used())
		return false;
	if (!mappable)
		return true;
	if (id == VFU_ID_82574 || id == VFU_ID_82576)
		return bar == 0;
	return id == VFU_ID_VMXNET3 && bar == 0 &&
	       !dev->regions[0].nr_areas && !dev->regions[1].nr_areas;
}

static int vfu_ask(struct vfu_device *dev)
{
	u32 flags, regions, irqs, i, bar, id;
	bool mappable = false;
	int err;

	err = vfu_device_info(dev, &flags, &regions, &irqs);
	if (err)
		return err;
	if (!(flags & VFU_DEVICE_PCI) || regions < VFU_NUM_REGIONS)
		return -ENODEV;
	for (i = 0; i < VFU_NUM_REGIONS; i++) {
		err = vfu_region_info(dev, i, &dev->regions[i]);
		if (err)
			return err;
		mappable |= dev->regions[i].nr_areas;
	}
	if (dev->regions[VFU_REGION_CONFIG].size < PCI_CFG_SPACE_SIZE)
		return -ENODEV;
	for (i = 0; i < min_t(u32, irqs, VFU_NUM_IRQS); i++) {
		err = vfu_irq_info(dev, i, &dev->irq_count[i]);
		if (err)
			return err;
		if (dev->irq_count[i] > VFU_MAX_VECTORS)
			return -EPROTO;
	}
	if (flags & VFU_DEVICE_RESET) {
		err = vfu_device_reset(dev);
		if (err)
			return err;
	}
	id = vfu_config(dev, PCI_VENDOR_ID, 4);
	dev->pcnet = id == VFU_ID_PCNET;
	dev->pcnet_rap = VFU_PCNET_NONE;
	for (i = 0; i < PCI_STD_NUM_BARS; i++) {
		bar = vfu_config(dev, PCI_BASE_ADDRESS_0 + 4 * i, 4);
		dev->regions[i].posted =
			(!(bar & PCI_BASE_ADDRESS_SPACE_IO) ||
			 id == VFU_ID_RTL8029) &&
			vfu_posts(dev, i, mappable, id);
		if ((bar & (PCI_BASE_ADDRESS_SPACE_IO |
			    PCI_BASE_ADDRESS_MEM_TYPE_64)) ==
		    PCI_BASE_ADDRESS_MEM_TYPE_64)
			i++;
	}
	return 0;
}

/*
 * The kernel's own image is not in the memory file (setup_physmem()), nor meant
 * for DMA: what comes after it is.
 */
static int vfu_share_memory(struct vfu_device *dev)
{
	unsigned long image = uml_reserved - uml_physmem;
	unsigned long long offset;
	int fd;

	if (physmem_size > VFU_MEMORY_END) {
		pr_err("vfio_user: %s: mem= must be at most %luM, below the window of PCI\n",
		       dev->path, VFU_MEMORY_END >> 20);
		return -E2BIG;
	}
	fd = phys_mapping(image, &offset);
	if (fd < 0)
		return -ENODEV;
	return vfu_dma_map(dev, image, physmem_size - image, fd, offset);
}

static void vfu_describe(struct vfu_device *dev)
{
	u32 id = vfu_config(dev, PCI_VENDOR_ID, 4);
	char posted[2 * PCI_STD_NUM_BARS + 1] = "";
	int i, areas = 0;

	for (i = 0; i < VFU_NUM_REGIONS; i++) {
		areas += dev->regions[i].nr_areas;
		if (dev->regions[i].posted && dev->regions[i].size)
			sprintf(posted + strlen(posted), " %d", i);
	}
	pr_info("vfio_user: %s: %04x:%04x, %u INTx, %u MSI, %u MSI-X, writes posted to BARs:%s, %d areas mapped\n",
		dev->path, id & 0xffff, id >> 16, dev->irq_count[VFU_IRQ_INTX],
		dev->irq_count[VFU_IRQ_MSI], dev->irq_count[VFU_IRQ_MSIX],
		*posted ? posted : " none", areas);
}

static int vfu_attach(struct vfu_device *dev)
{
	int err;

	err = vfu_wire_open(dev);
	if (err) {
		pr_err("vfio_user: %s: no vfio-user server answers there: error %d\n",
		       dev->path, err);
		return err;
	}
	err = vfu_ask(dev);
	if (err)
		goto close;
	err = -ELOOP;
	if (!vfu_list_ends(dev)) {
		pr_err("vfio_user: %s: its list of capabilities does not end\n",
		       dev->path);
		goto close;
	}
	err = vfu_share_memory(dev);
	if (err)
		goto close;
	vfu_read_config(dev);
	err = vfu_irq_init(dev);
	if (err)
		goto close;
	vfu_describe(dev);
	vfu_irq_start(dev);

	dev->pdev.ops = &vfu_ops;
	dev->pdev.irq_chip = &vfu_intx_chip;
	err = um_pci_device_register(&dev->pdev);
	if (!err)
		return 0;
	vfu_irq_exit(dev);
close:
	pr_err("vfio_user: %s: not attached: error %d\n", dev->path, err);
	vfu_wire_close(dev);
	return err;
}

/*
 * The server has gone. Registers that read as ones tell a driver; but a virtio
 * driver waits for its queues, without end, and reads no register meanwhile.
 */
static void vfu_lost(struct work_struct *wk)
{
	struct vfu_device *dev = container_of(to_delayed_work(wk),
					      struct vfu_device, lost_wk);
	struct pci_dev *pci_dev = um_pci_device_get(&dev->pdev);

	if (IS_REACHABLE(CONFIG_VIRTIO) && pci_dev)
		virtio_break_children(&pci_dev->dev);
	pci_dev_put(pci_dev);
	/* Its driver may be about to make the queues. */
	schedule_delayed_work(&dev->lost_wk, HZ);
}

static void vfu_forget(struct vfu_device *dev)
{
	cancel_delayed_work_sync(&dev->lost_wk);
	list_del(&dev->list);
	kfree(dev->path);
	kfree(dev);
}

/* Makes room for what has come back behind a path. */
static int vfu_detach(const char *path)
{
	struct vfu_device *dev;

	list_for_each_entry(dev, &vfu_devices, list) {
		if (strcmp(dev->path, path))
			continue;
		if (!READ_ONCE(dev->dead)) {
			pr_err("vfio_user: %s: is attached, and its server answers\n",
			       path);
			return -EBUSY;
		}
		um_pci_device_remove(&dev->pdev);
		um_pci_device_unregister(&dev->pdev);
		vfu_irq_exit(dev);
		vfu_wire_close(dev);
		vfu_forget(dev);
		return 0;
	}
	return 0;
}

/* The caller keeps others out (kernel_param_lock()). */
static int vfu_device_set(const char *path, const struct kernel_param *kp)
{
	struct vfu_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	char *own = kstrdup(path, GFP_KERNEL);
	int err = -ENOMEM;

	if (!dev || !own)
		goto free;
	strim(own);
	if (vfu_running) {
		err = vfu_detach(own);
		if (err)
			goto free;
	}
	dev->path = own;
	raw_spin_lock_init(&dev->lock);
	INIT_DELAYED_WORK(&dev->lost_wk, vfu_lost);
	dev->fd = -1;
	list_add_tail(&dev->list, &vfu_devices);
	if (!vfu_running)
		return 0;
	err = vfu_attach(dev);
	if (err)
		vfu_forget(dev);
	return err;

free:
	kfree(own);
	kfree(dev);
	return err;
}

static const struct kernel_param_ops vfu_device_ops = {
	.set = vfu_device_set,
};

device_param_cb(device, &vfu_device_ops, NULL, 0200);
__uml_help(vfu_device_ops,
"vfio_user.device=<path>\n"
"    A PCI device behind the UNIX socket of a vfio-user server. May be given\n"
"    several times, for up to eight devices.\n\n"
);

/* The calendar has let the guest run. */
static void vfu_look_all(void)
{
	struct vfu_device *dev;

	list_for_each_entry(dev, &vfu_devices, list)
		vfu_look(dev);
}

static int __init vfu_init(void)
{
	struct vfu_device *dev, *next;

	if (um_irq_timetravel_handler_used())
		time_travel_look = vfu_look_all;
	list_for_each_entry_safe(dev, next, &vfu_devices, list)
		if (vfu_attach(dev))
			vfu_forget(dev);
	vfu_running = true;
	return 0;
}
late_initcall(vfu_init);
