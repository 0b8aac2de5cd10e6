// SPDX-License-Identifier: GPL-2.0-only
/*
 * Interrupts of a vfio-user device in a user-mode kernel.
 *
 * Each interrupt is a pipe whose write end the server has, in place of an
 * eventfd (which cannot raise SIGIO). All pipes of a device are in one epoll
 * descriptor, which is one interrupt of UML: a device with many vectors does
 * not use up UML's few.
 *
 * - MSI and MSI-X: the guest writes a message whose data is an interrupt
 *   number, and that is what a signal of the vector raises. The vector's own
 *   mask is kept here too, since a server may leave that to its client: what
 *   comes while it is masked is raised when it is unmasked.
 * - INTx masks itself at the server when it is delivered. handle_level_irq()
 *   unmasks it after the handlers have run, and the server fires again if the
 *   line is still up.
 * - A pipe that ends tells that the server is gone, whether or not anybody
 *   reads a register.
 * - With time-travel=ext no signal is used: it would interrupt the guest wherever
 *   the host's time has it, and no two boots would be equal. The guest looks at
 *   its pipes after each answer of a server and each RUN of the calendar, and what
 *   it finds is an event of its virtual time (vfu_look()).
 */
#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/kernel.h>
#include <linux/pci_regs.h>
#include <linux/slab.h>
#include <linux/unaligned.h>

#include <irq_kern.h>
#include <os.h>

#include "host_connect.h"
#include "pci_socket.h"
#include "vfio_user_dev.h"

#define VFU_READY	16
/*
 * So long may more interrupts come, all the time, than are handled; and twice so
 * many within that time are no device's.
 */
#define VFU_FLOOD_MS	2000
#define VFU_FLOOD	(1 << 20)

/* Tokens of the epoll descriptor: an MSI-X vector's number, or one of these. */
#define VFU_TOKEN_INTX	(VFU_MAX_VECTORS + 0)
#define VFU_TOKEN_MSI	(VFU_MAX_VECTORS + 1)
#define VFU_TOKEN_KICK	(VFU_MAX_VECTORS + 2)

static struct vfu_vector *vfu_vector(struct vfu_device *dev, unsigned int token)
{
	if (token == VFU_TOKEN_INTX)
		return &dev->intx;
	if (token == VFU_TOKEN_MSI)
		return &dev->msi;
	return token < dev->irq_count[VFU_IRQ_MSIX] ? &dev->msix[token] : NULL;
}

static bool vfu_vector_masked(struct vfu_device *dev, struct vfu_vector *v)
{
	return v->masked || (dev->msix_all_masked &&
			     dev->irq_index == VFU_IRQ_MSIX);
}

static void vfu_connect(struct vfu_device *dev, int index, u32 vector,
			unsigned int token)
{
	struct vfu_vector *v = vfu_vector(dev, token);
	int write_end, err;

	if (v->fd >= 0 || dev->dead)
		return;
	err = pci_socket_pipe(&v->fd, &write_end,
			      !um_irq_timetravel_handler_used());
	if (err)
		goto fail;
	err = pci_socket_watch(dev->epoll_fd, v->fd, token);
	if (!err)
		err = vfu_irq_connect(dev, index, vector, write_end);
	pci_socket_close(write_end);
	if (!err)
		return;
	pci_socket_unwatch(dev->epoll_fd, v->fd);
	pci_socket_close(v->fd);
	v->fd = -1;
fail:
	if (!dev->dead)
		pr_err("vfio_user: %s: cannot connect interrupt %d.%u: error %d\n",
		       dev->path, index, vector, err);
}

static void vfu_disconnect(struct vfu_device *dev, struct vfu_vector *v)
{
	v->pending = false;
	if (v->fd < 0)
		return;
	pci_socket_unwatch(dev->epoll_fd, v->fd);
	pci_socket_close(v->fd);
	v->fd = -1;
}

static void vfu_disconnect_all(struct vfu_device *dev)
{
	u32 i;

	vfu_disconnect(dev, &dev->intx);
	vfu_disconnect(dev, &dev->msi);
	for (i = 0; i < dev->irq_count[VFU_IRQ_MSIX]; i++)
		vfu_disconnect(dev, &dev->msix[i]);
}

/*
 * A server may close its ends at any time once it is told to disable them; the
 * ends of its pipes are no news then.
 */
static void vfu_disable(struct vfu_device *dev)
{
	u32 i;

	pci_socket_unwatch(dev->epoll_fd, dev->intx.fd);
	pci_socket_unwatch(dev->epoll_fd, dev->msi.fd);
	for (i = 0; i < dev->irq_count[VFU_IRQ_MSIX]; i++)
		pci_socket_unwatch(dev->epoll_fd, dev->msix[i].fd);
	vfu_irq_disable(dev, dev->irq_index);
}

/* Takes the device from one way to interrupt to another. */
static void vfu_switch(struct vfu_device *dev, int index)
{
	u32 i;

	if (index == dev->irq_index)
		return;
	if (dev->irq_index != VFU_IRQ_NONE && !dev->dead)
		vfu_disable(dev);
	vfu_disconnect_all(dev);
	dev->irq_index = index;

	switch (index) {
	case VFU_IRQ_INTX:
		vfu_connect(dev, VFU_IRQ_INTX, 0, VFU_TOKEN_INTX);
		break;
	case VFU_IRQ_MSI:
		vfu_connect(dev, VFU_IRQ_MSI, 0, VFU_TOKEN_MSI);
		break;
	case VFU_IRQ_MSIX:
		for (i = 0; i < dev->irq_count[VFU_IRQ_MSIX]; i++)
			if (dev->msix[i].virq && !dev->msix[i].masked)
				vfu_connect(dev, VFU_IRQ_MSIX, i, i);
		break;
	}
}

/*
 * In virtual time: an interrupt that is there becomes an event of this time. It is
 * delivered when the guest's time next moves, or when it is idle: its instructions
 * take no time.
 */
void vfu_look(struct vfu_device *dev)
{
	unsigned int token;

	if (um_irq_timetravel_handler_used() && dev->looks &&
	    pci_socket_ready(dev->epoll_fd, &token, 1) > 0)
		time_travel_add_event_rel(&dev->event, 0);
}

/* The handler runs again: a mask has gone, or it left before all was done. */
static void vfu_look_again(struct vfu_device *dev)
{
	pci_socket_kick(dev->kick_fds[1], 1);
	vfu_look(dev);
}

/* What the vector raises now, 0 for nothing. */
static u32 vfu_take(struct vfu_device *dev, unsigned int token)
{
	struct vfu_vector *v = vfu_vector(dev, token);
	int ret;

	if (!v || v->fd < 0)
		return 0;
	ret = pci_socket_drain(v->fd);
	if (ret < 0) {
		vfu_disconnect(dev, v);
		vfu_wire_fail(dev, "the server has closed the connection", 0);
		return 0;
	}
	if (!ret)
		return 0;
	dev->heard += ret;
	if (vfu_vector_masked(dev, v)) {
		v->pending = true;
		return 0;
	}
	return token == VFU_TOKEN_INTX ? dev->pdev.irq : v->virq;
}

static void vfu_raise_pending(struct vfu_device *dev)
{
	unsigned long flags;
	u32 i, virq;

	/* Most devices have few vectors, and this is rare. */
	for (i = 0; i <= dev->irq_count[VFU_IRQ_MSIX]; i++) {
		struct vfu_vector *v = i < dev->irq_count[VFU_IRQ_MSIX] ?
			&dev->msix[i] : &dev->msi;

		raw_spin_lock_irqsave(&dev->lock, flags);
		virq = v->pending && !vfu_vector_masked(dev, v) ? v->virq : 0;
		if (virq)
			v->pending = false;
		raw_spin_unlock_irqrestore(&dev->lock, flags);
		if (virq)
			generic_handle_irq(virq);
	}
}

/*
 * Whether the server interrupts without end: all the time faster than the handler
 * reads, so that the guest would stay in there, or so fast now and then that it
 * spends a good part of its time there. Not @done, there is more by now than the
 * handler found.
 */
static bool vfu_floods(struct vfu_device *dev, bool done)
{
	/* The host's time, by which a flood is one, does not count. */
	if (um_irq_timetravel_handler_used())
		return false;
	if (dev->heard >= VFU_FLOOD) {
		long long before = dev->heard_at;

		dev->heard = 0;
		dev->heard_at = host_now_ms();
		if (dev->heard_at - before < VFU_FLOOD_MS)
			return true;
	}
	if (done)
		dev->flood_since = 0;
	else if (!dev->flood_since)
		dev->flood_since = host_now_ms();
	return dev->flood_since &&
	       host_now_ms() - dev->flood_since >= VFU_FLOOD_MS;
}

static void vfu_ended(struct vfu_device *dev, bool done)
{
	unsigned long flags;

	if (!vfu_floods(dev, done)) {
		if (!done)
			vfu_look_again(dev);
		return;
	}
	raw_spin_lock_irqsave(&dev->lock, flags);
	vfu_wire_fail(dev, "the server interrupts without end", 0);
	vfu_disconnect_all(dev);
	raw_spin_unlock_irqrestore(&dev->lock, flags);
}

static irqreturn_t vfu_interrupt(int irq, void *opaque)
{
	struct vfu_device *dev = opaque;
	/* Each interrupt that waits is among them once. */
	u32 rounds = 2 + dev->irq_count[VFU_IRQ_MSIX] / VFU_READY;
	unsigned int tokens[VFU_READY];
	unsigned long flags;
	int n, i;

	do {
		n = pci_socket_ready(dev->epoll_fd, tokens, VFU_READY);
		for (i = 0; i < n; i++) {
			u32 virq;

			if (tokens[i] == VFU_TOKEN_KICK) {
				pci_socket_drain(dev->kick_fds[0]);
				vfu_raise_pending(dev);
				continue;
			}
			raw_spin_lock_irqsave(&dev->lock, flags);
			virq = vfu_take(dev, tokens[i]);
			raw_spin_unlock_irqrestore(&dev->lock, flags);
			if (virq)
				generic_handle_irq(virq);
		}
		/* Fewer than asked for: there are no more for now. */
	} while (n == VFU_READY && --rounds);
	vfu_ended(dev, n < VFU_READY);
	return IRQ_HANDLED;
}

static void __maybe_unused vfu_event(struct time_travel_event *event)
{
	struct vfu_device *dev = container_of(event, struct vfu_device, event);

	generic_handle_irq(dev->um_irq);
}

static void vfu_intx_mask(struct irq_data *data)
{
	/* The delivery did, and nothing comes before the unmask. */
}

static void vfu_intx_unmask(struct irq_data *data)
{
	struct um_pci_device *pdev = irq_data_get_irq_chip_data(data);
	struct vfu_device *dev = container_of(pdev, struct vfu_device, pdev);
	unsigned long flags;

	raw_spin_lock_irqsave(&dev->lock, flags);
	if (dev->irq_index == VFU_IRQ_INTX && !dev->dead)
		vfu_irq_unmask(dev);
	raw_spin_unlock_irqrestore(&dev->lock, flags);
}

struct irq_chip vfu_intx_chip = {
	.name = "vfio-user INTx",
	.irq_mask = vfu_intx_mask,
	.irq_unmask = vfu_intx_unmask,
};

/* Which index the guest's settings ask for. */
static int vfu_wanted(struct vfu_device *dev)
{
	if (dev->msix_cap && dev->config[dev->msix_cap + PCI_MSIX_FLAGS + 1] &
	    (PCI_MSIX_FLAGS_ENABLE >> 8))
		return VFU_IRQ_MSIX;
	if (dev->msi_cap && dev->config[dev->msi_cap + PCI_MSI_FLAGS] &
	    PCI_MSI_FLAGS_ENABLE)
		return VFU_IRQ_MSI;
	return dev->irq_count[VFU_IRQ_INTX] ? VFU_IRQ_INTX : VFU_IRQ_NONE;
}

static void vfu_msi_changed(struct vfu_device *dev)
{
	const u8 *cap = dev->config + dev->msi_cap;
	bool wide = cap[PCI_MSI_FLAGS] & PCI_MSI_FLAGS_64BIT;
	bool maskable = get_unaligned_le16(cap + PCI_MSI_FLAGS) &
		PCI_MSI_FLAGS_MASKBIT;
	bool was_masked = dev->msi.masked;

	dev->msi.virq = get_unaligned_le16(cap + (wide ? PCI_MSI_DATA_64 :
						  PCI_MSI_DATA_32));
	dev->msi.masked = maskable && cap[wide ? PCI_MSI_MASK_64 :
					  PCI_MSI_MASK_32] & 1;
	if (was_masked && !dev->msi.masked)
		vfu_look_again(dev);
}

/* The guest has written its configuration space. */
void vfu_irq_config_written(struct vfu_device *dev, unsigned int offset,
			    int size, unsigned long val)
{
	bool was_masked = dev->msix_all_masked;
	int i;

	for (i = 0; i < size && offset + i < sizeof(dev->config); i++)
		dev->config[offset + i] = val >> (8 * i);
	if (dev->msix_cap)
		dev->msix_all_masked =
			dev->config[dev->msix_cap + PCI_MSIX_FLAGS + 1] &
			(PCI_MSIX_FLAGS_MASKALL >> 8);
	if (dev->msi_cap)
		vfu_msi_changed(dev);
	vfu_switch(dev, vfu_wanted(dev));
	if (was_masked && !dev->msix_all_masked)
		vfu_look_again(dev);
}

/* The guest has written the MSI-X table, @offset bytes from its start. */
void vfu_irq_table_written(struct vfu_device *dev, u32 offset, int size,
			   unsigned long val)
{
	u32 vector = offset / PCI_MSIX_ENTRY_SIZE;
	struct vfu_vector *v;
	bool was_masked;

	if (size == 8) {
		vfu_irq_table_written(dev, offset, 4, (u32)val);
		vfu_irq_table_written(dev, offset + 4, 4, val >> 32);
		return;
	}
	if (size != 4 || vector >= dev->irq_count[VFU_IRQ_MSIX])
		return;
	v = &dev->msix[vector];
	was_masked = v->masked;
	switch (offset % PCI_MSIX_ENTRY_SIZE) {
	case PCI_MSIX_ENTRY_DATA:
		v->virq = val;
		break;
	case PCI_MSIX_ENTRY_VECTOR_CTRL:
		v->masked = val & PCI_MSIX_ENTRY_CTRL_MASKBIT;
		break;
	}
	if (v->virq && !v->masked && dev->irq_index == VFU_IRQ_MSIX)
		vfu_connect(dev, VFU_IRQ_MSIX, vector, vector);
	if (was_masked && !v->masked && v->pending)
		vfu_look_again(dev);
}

/* The driver is not there yet; the line may be. */
void vfu_irq_start(struct vfu_device *dev)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&dev->lock, flags);
	vfu_switch(dev, vfu_wanted(dev));
	raw_spin_unlock_irqrestore(&dev->lock, flags);
}

int vfu_irq_init(struct vfu_device *dev)
{
	u32 i, count;
	int err;

	dev->irq_index = VFU_IRQ_NONE;
	dev->um_irq = -1;
	dev->intx.fd = -1;
	dev->msi.fd = -1;
	count = dev->irq_count[VFU_IRQ_MSIX];
	dev->msix = kvcalloc(max(count, 1U), sizeof(*dev->msix), GFP_KERNEL);
	if (!dev->msix)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		dev->msix[i].fd = -1;
		dev->msix[i].masked = true;
	}

	dev->epoll_fd = pci_socket_epoll();
	if (dev->epoll_fd < 0) {
		err = dev->epoll_fd;
		goto free;
	}
	err = pci_socket_pipe(&dev->kick_fds[0], &dev->kick_fds[1],
			      !um_irq_timetravel_handler_used());
	if (err)
		goto close_epoll;
	err = pci_socket_watch(dev->epoll_fd, dev->kick_fds[0],
			       VFU_TOKEN_KICK);
	if (err)
		goto close_kick;
	err = um_request_irq(UM_IRQ_ALLOC, um_irq_timetravel_handler_used() ?
			     -1 : dev->epoll_fd, IRQ_READ, vfu_interrupt, 0,
			     "vfio-user", dev);
	if (err < 0)
		goto close_kick;
	dev->um_irq = err;
	time_travel_set_event_fn(&dev->event, vfu_event);
	dev->looks = true;
	return 0;

close_kick:
	pci_socket_close(dev->kick_fds[0]);
	pci_socket_close(dev->kick_fds[1]);
close_epoll:
	pci_socket_close(dev->epoll_fd);
free:
	kvfree(dev->msix);
	return err;
}

void vfu_irq_exit(struct vfu_device *dev)
{
	dev->looks = false;
	if (um_irq_timetravel_handler_used())
		time_travel_del_event(&dev->event);
	um_free_irq(dev->um_irq, dev);
	vfu_disconnect_all(dev);
	pci_socket_close(dev->kick_fds[0]);
	pci_socket_close(dev->kick_fds[1]);
	pci_socket_close(dev->epoll_fd);
	kvfree(dev->msix);
}
