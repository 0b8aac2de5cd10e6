/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A PCI function behind a vfio-user socket, as seen by a user-mode kernel.
 * vfio_user_kern.c has the device, vfio_user_irq.c its interrupts,
 * vfio_user_wire.c the messages.
 */
#ifndef __UM_VFIO_USER_DEV_H
#define __UM_VFIO_USER_DEV_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/time-internal.h>
#include <linux/types.h>
#include <linux/workqueue.h>

#include "virt-pci.h"

/* Region and interrupt indices of a PCI device, as in linux/vfio.h. */
#define VFU_REGION_CONFIG	7
#define VFU_NUM_REGIONS		8
#define VFU_IRQ_INTX		0
#define VFU_IRQ_MSI		1
#define VFU_IRQ_MSIX		2
#define VFU_NUM_IRQS		3
#define VFU_IRQ_NONE		VFU_NUM_IRQS

#define VFU_MAX_AREAS		16
/* Most bytes of one region access; more are several accesses. */
#define VFU_MAX_DATA		4096
#define VFU_MAX_VECTORS		2048
/* Where a string of accesses has its width, in the number of the region. */
#define VFU_STRING_SHIFT	24
#define VFU_RX_SIZE		(2 * VFU_MAX_DATA)

struct vfu_area {
	u64 offset;
	u64 size;
	void *at;
};

struct vfu_region {
	u64 size;
	bool writable;
	bool posted;
	int nr_areas;
	struct vfu_area areas[VFU_MAX_AREAS];
};

/* One interrupt of an index: a pipe that the server writes to. */
struct vfu_vector {
	int fd;
	u32 virq;
	bool masked;
	bool pending;
};

struct vfu_device {
	struct um_pci_device pdev;
	struct list_head list;
	const char *path;

	/*
	 * Held with interrupts off around each exchange with the server, and
	 * whenever what follows changes. A handler that runs in between would
	 * otherwise read the reply that its victim waits for.
	 */
	raw_spinlock_t lock;
	int fd;
	bool dead;
	/* The server takes strings of accesses to one port. */
	bool strings;
	/* A PCnet, and the register that its RAP chooses. */
	bool pcnet;
	u8 pcnet_rap;
	struct delayed_work lost_wk;
	/* When its slowness was told of. */
	long long slow_told;
	u16 id;
	u32 rx_len;
	u8 rx[VFU_RX_SIZE];

	struct vfu_region regions[VFU_NUM_REGIONS];

	/* Which index is connected, or VFU_IRQ_NONE. */
	int irq_index;
	int um_irq;
	/* With time-travel=ext: its interrupts are looked for, and their event. */
	bool looks;
	struct time_travel_event event;
	int epoll_fd;
	int kick_fds[2];
	/* Since when the interrupt's handler has not come to an end, or 0. */
	long long flood_since;
	/* Interrupts since that time. */
	unsigned int heard;
	long long heard_at;
	u32 irq_count[VFU_NUM_IRQS];
	struct vfu_vector intx, msi, *msix;
	bool msix_all_masked;
	/*
	 * Where the capabilities are (0: there is none), those that the guest
	 * is not to see, and the table.
	 */
	u8 msi_cap, msix_cap;
	u8 hidden[2];
	int table_bar;
	u32 table_offset, table_size;
	/* What the guest wrote to the first 256 bytes. */
	u8 config[PCI_CFG_SPACE_SIZE];
};

extern unsigned int vfu_timeout_ms;
/* Messages that were sent, and those of them whose answer was waited for. */
extern unsigned long vfu_messages, vfu_waits;

/* vfio_user_wire.c: the caller holds the lock, except while it opens. */
int vfu_wire_open(struct vfu_device *dev);
void vfu_wire_close(struct vfu_device *dev);
void vfu_wire_fail(struct vfu_device *dev, const char *why, int err);
int vfu_region_read(struct vfu_device *dev, int region, u64 offset, void *buf,
		    u32 count);
int vfu_region_write(struct vfu_device *dev, int region, u64 offset,
		     const void *buf, u32 count, bool posted);
int vfu_dma_map(struct vfu_device *dev, u64 address, u64 size, int fd,
		u64 offset);
int vfu_device_info(struct vfu_device *dev, u32 *flags, u32 *regions,
		    u32 *irqs);
int vfu_device_reset(struct vfu_device *dev);
int vfu_region_info(struct vfu_device *dev, int index,
		    struct vfu_region *region);
int vfu_irq_info(struct vfu_device *dev, int index, u32 *count);
int vfu_irq_connect(struct vfu_device *dev, int index, u32 vector, int fd);
int vfu_irq_disable(struct vfu_device *dev, int index);
int vfu_irq_unmask(struct vfu_device *dev);

/* vfio_user_irq.c */
extern struct irq_chip vfu_intx_chip;
int vfu_irq_init(struct vfu_device *dev);
void vfu_irq_exit(struct vfu_device *dev);
void vfu_irq_start(struct vfu_device *dev);
void vfu_look(struct vfu_device *dev);
void vfu_irq_config_written(struct vfu_device *dev, unsigned int offset,
			    int size, unsigned long val);
void vfu_irq_table_written(struct vfu_device *dev, u32 offset, int size,
			   unsigned long val);

#endif /* __UM_VFIO_USER_DEV_H */
