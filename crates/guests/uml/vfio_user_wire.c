// SPDX-License-Identifier: GPL-2.0-only
/*
 * The client's side of vfio-user (libvfio-user's docs/vfio-user.rst): messages
 * out, replies in, one at a time. Numbers are in the host's byte order.
 *
 * A server that closes the socket, does not answer in time, or answers what
 * was not asked is given up: one kernel message, and from then on every call
 * fails at once.
 */
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/printk.h>
#include <linux/string.h>

#include <irq_kern.h>

#include "host_connect.h"
#include "pci_socket.h"
#include "vfio_user_dev.h"

enum vfu_command {
	VFU_VERSION = 1,
	VFU_DMA_MAP = 2,
	VFU_GET_INFO = 4,
	VFU_GET_REGION_INFO = 5,
	VFU_GET_IRQ_INFO = 7,
	VFU_SET_IRQS = 8,
	VFU_REGION_READ = 9,
	VFU_REGION_WRITE = 10,
	VFU_RESET = 13,
};

#define VFU_TYPE_MASK		0xf
#define VFU_REPLY		0x1
#define VFU_NO_REPLY		0x10
#define VFU_ERROR		0x20

struct vfu_header {
	u16 id;
	u16 command;
	u32 size;
	u32 flags;
	u32 error;
};

struct vfu_access {
	struct vfu_header header;
	u64 offset;
	u32 region;
	u32 count;
};

/* struct vfio_region_info and its capability VFIO_REGION_INFO_CAP_SPARSE_MMAP. */
struct vfu_region_info {
	u32 argsz;
	u32 flags;
	u32 index;
	u32 cap_offset;
	u64 size;
	u64 offset;
};

struct vfu_sparse {
	u16 id;
	u16 version;
	u32 next;
	u32 nr_areas;
	u32 reserved;
};

#define VFU_REGION_WRITABLE	2
#define VFU_REGION_MMAP		4
#define VFU_REGION_CAPS		8
#define VFU_CAP_SPARSE_MMAP	1

#define VFU_IRQ_DATA_NONE	1
#define VFU_IRQ_DATA_EVENTFD	4
#define VFU_IRQ_UNMASK		16
#define VFU_IRQ_TRIGGER		32

/* No transfer of more than VFU_MAX_DATA bytes, one descriptor at a time. */
static const char vfu_capabilities[] =
	"{\"capabilities\":{\"max_msg_fds\":1,"
	"\"max_data_xfer_size\":" __stringify(4096) ",\"pgsizes\":4096,"
	"\"port_strings\":true}}";
static_assert(VFU_MAX_DATA == 4096);

unsigned long vfu_messages, vfu_waits;

void vfu_wire_fail(struct vfu_device *dev, const char *why, int err)
{
	if (dev->dead)
		return;
	dev->dead = true;
	schedule_delayed_work(&dev->lost_wk, 0);
	if (dev->fd >= 0)
		pci_socket_shutdown(dev->fd);
	if (err)
		pr_err("vfio_user: %s: %s (error %d); the device is gone, its registers read as ones until it is attached again\n",
		       dev->path, why, err);
	else
		pr_err("vfio_user: %s: %s; the device is gone, its registers read as ones until it is attached again\n",
		       dev->path, why);
}

static int vfu_broken(struct vfu_device *dev, int err)
{
	switch (err) {
	case -ETIMEDOUT:
		vfu_wire_fail(dev, "the server does not answer", 0);
		break;
	case -ECONNRESET:
	case -EPIPE:
		vfu_wire_fail(dev, "the server has closed the connection", 0);
		break;
	default:
		vfu_wire_fail(dev, "the connection failed", err);
	}
	return -EIO;
}

/* @head begins with a header, which is filled in here. */
static int vfu_send(struct vfu_device *dev, void *head, u32 head_len,
		    enum vfu_command command, const void *data, u32 data_len,
		    int pass, u32 flags)
{
	struct pci_socket_wait wait = { .timeout_ms = vfu_timeout_ms };
	struct vfu_header *header = head;
	int err;

	if (dev->dead)
		return -EIO;
	*header = (struct vfu_header) {
		.id = ++dev->id,
		.command = command,
		.size = head_len + data_len,
		.flags = flags,
	};
	vfu_messages++;
	vfu_waits += !(flags & VFU_NO_REPLY);
	err = pci_socket_send(dev->fd, head, head_len, data, data_len,
			      &pass, pass >= 0, &wait);
	return err ? vfu_broken(dev, err) : 0;
}

/* A whole message at the front of dev->rx; its size, or an error. */
static int vfu_recv(struct vfu_device *dev, int *passed,
		    struct pci_socket_wait *wait)
{
	struct vfu_header *header = (void *)dev->rx;
	int n;

	for (;;) {
		if (dev->rx_len >= sizeof(*header)) {
			if (header->size < sizeof(*header) ||
			    header->size > sizeof(dev->rx)) {
				vfu_wire_fail(dev, "the server sent a message of impossible size", 0);
				return -EIO;
			}
			if (dev->rx_len >= header->size)
				return header->size;
		}
		n = pci_socket_recv(dev->fd, dev->rx + dev->rx_len,
				    sizeof(dev->rx) - dev->rx_len, passed,
				    wait);
		if (n < 0)
			return vfu_broken(dev, n);
		dev->rx_len += n;
	}
}

static void vfu_consume(struct vfu_device *dev, u32 size)
{
	dev->rx_len -= size;
	if (dev->rx_len)
		memmove(dev->rx, dev->rx + size, dev->rx_len);
}

/*
 * A request of the server. All memory was mapped with its file, so that it has
 * nothing to ask for; but an answer is owed.
 */
static int vfu_refuse(struct vfu_device *dev, struct vfu_header header,
		      struct pci_socket_wait *wait)
{
	int err;

	if (header.flags & VFU_NO_REPLY)
		return 0;
	header.size = sizeof(header);
	header.flags = VFU_REPLY | VFU_ERROR;
	header.error = EOPNOTSUPP;
	err = pci_socket_send(dev->fd, &header, sizeof(header), NULL, 0, NULL,
			      0, wait);
	return err ? vfu_broken(dev, err) : 0;
}

/*
 * Waits for the reply to the last request; its payload stays at dev->rx after
 * the header until vfu_consume(), which the caller owes for @size > 0.
 */
static int vfu_reply(struct vfu_device *dev, enum vfu_command command,
		     int *passed)
{
	struct pci_socket_wait wait = { .timeout_ms = vfu_timeout_ms };
	long long begun = host_now_ms();
	struct vfu_header header;
	int size, took_ms, err;

	/* One wait for all that comes before the reply: a server may talk without end. */
	for (;;) {
		size = vfu_recv(dev, passed, &wait);
		if (size < 0)
			return size;
		memcpy(&header, dev->rx, sizeof(header));
		if ((header.flags & VFU_TYPE_MASK) == VFU_REPLY)
			break;
		vfu_consume(dev, size);
		err = vfu_refuse(dev, header, &wait);
		if (err)
			return err;
	}
	took_ms = host_slow_ms(begun, vfu_timeout_ms, &dev->slow_told);
	/* In virtual time the host's does not count. */
	if (took_ms && !um_irq_timetravel_handler_used())
		pr_warn("vfio_user: %s: the server is slow: it took %d ms to answer\n",
			dev->path, took_ms);
	if (header.id != dev->id || header.command != command) {
		vfu_wire_fail(dev, "the server answered what was not asked", 0);
		return -EIO;
	}
	if (header.flags & VFU_ERROR) {
		vfu_consume(dev, size);
		size = header.error && header.error < MAX_ERRNO ?
			-(int)header.error : -EREMOTEIO;
	}
	vfu_look(dev);
	return size;
}

/*
 * A request and its reply: @message is a header with its fields behind it. The
 * reply's fields, as many as there are and fit, take their place.
 */
static int vfu_call(struct vfu_device *dev, enum vfu_command command,
		    void *message, u32 len, u32 room, int pass, int *passed)
{
	int size, err;

	err = vfu_send(dev, message, len, command, NULL, 0, pass, 0);
	if (err)
		return err;
	size = vfu_reply(dev, command, passed);
	if (size < 0)
		return size;
	memcpy(message, dev->rx, min_t(u32, size, room));
	vfu_consume(dev, size);
	return size;
}

int vfu_region_read(struct vfu_device *dev, int region, u64 offset, void *buf,
		    u32 count)
{
	struct vfu_access access = {
		.offset = offset,
		.region = region,
		.count = count,
	};
	int size, err;

	err = vfu_send(dev, &access, sizeof(access), VFU_REGION_READ, NULL, 0,
		       -1, 0);
	if (err)
		return err;
	size = vfu_reply(dev, VFU_REGION_READ, NULL);
	if (size < 0)
		return size;
	if (size != sizeof(access) + count) {
		vfu_wire_fail(dev, "the server's answer to a read has another size", 0);
		return -EIO;
	}
	memcpy(buf, dev->rx + sizeof(access), count);
	vfu_consume(dev, size);
	return 0;
}

int vfu_region_write(struct vfu_device *dev, int region, u64 offset,
		     const void *buf, u32 count, bool posted)
{
	struct vfu_access access = {
		.offset = offset,
		.region = region,
		.count = count,
	};
	int size, err;

	err = vfu_send(dev, &access, sizeof(access), VFU_REGION_WRITE, buf,
		       count, -1, posted ? VFU_NO_REPLY : 0);
	if (err || posted)
		return err;
	size = vfu_reply(dev, VFU_REGION_WRITE, NULL);
	if (size < 0)
		return size;
	vfu_consume(dev, size);
	return 0;
}

int vfu_dma_map(struct vfu_device *dev, u64 address, u64 size, int fd,
		u64 offset)
{
	struct {
		struct vfu_header header;
		u32 argsz;
		u32 flags;
		u64 offset;
		u64 address;
		u64 size;
	} map = {
		.argsz = sizeof(map) - sizeof(map.header),
		.flags = 3,	/* read and write */
		.offset = offset,
		.address = address,
		.size = size,
	};
	int ret = vfu_call(dev, VFU_DMA_MAP, &map, sizeof(map), sizeof(map),
			   fd, NULL);

	return ret < 0 ? ret : 0;
}

/* All requests that only ask: four numbers out, four or more back. */
struct vfu_info {
	struct vfu_header header;
	u32 argsz;
	u32 a, b, c;
};

int vfu_device_info(struct vfu_device *dev, u32 *flags, u32 *regions,
		    u32 *irqs)
{
	struct vfu_info info = { .argsz = 16 };
	int ret = vfu_call(dev, VFU_GET_INFO, &info, sizeof(info),
			   sizeof(info), -1, NULL);

	if (ret < 0)
		return ret;
	if (ret < sizeof(info))
		return -EPROTO;
	*flags = info.a;
	*regions = info.b;
	*irqs = info.c;
	return 0;
}

int vfu_irq_info(struct vfu_device *dev, int index, u32 *count)
{
	struct vfu_info info = { .argsz = 16, .b = index };
	int ret = vfu_call(dev, VFU_GET_IRQ_INFO, &info, sizeof(info),
			   sizeof(info), -1, NULL);

	if (ret < 0)
		return ret;
	if (ret < sizeof(info))
		return -EPROTO;
	*count = info.c;
	return 0;
}

int vfu_device_reset(struct vfu_device *dev)
{
	struct vfu_header header;
	int ret = vfu_call(dev, VFU_RESET, &header, sizeof(header),
			   sizeof(header), -1, NULL);

	return ret < 0 ? ret : 0;
}

/* @len bytes of information, the areas of a sparse region among them. */
static int vfu_find_areas(const u8 *at, u32 len, struct vfu_region *region)
{
	const struct vfu_region_info *info = (const void *)at;
	const struct vfu_sparse *sparse;
	const u64 *pairs;
	u32 next, i;

	if (!(info->flags & VFU_REGION_MMAP))
		return 0;
	next = info->flags & VFU_REGION_CAPS ? info->cap_offset : 0;
	/* Capabilities lie in ascending order here, or the list is refused. */
	while (next) {
		if (next < sizeof(*info) || next % 8 ||
		    next > len - sizeof(*sparse))
			return -EPROTO;
		sparse = (const void *)(at + next);
		if (sparse->id == VFU_CAP_SPARSE_MMAP)
			break;
		if (sparse->next && sparse->next <= next)
			return -EPROTO;
		next = sparse->next;
	}
	if (!next) {
		region->areas[0].size = info->size;
		region->nr_areas = 1;
		return 0;
	}
	if (sparse->nr_areas > VFU_MAX_AREAS ||
	    sparse->nr_areas * 16 > len - next - sizeof(*sparse))
		return -EPROTO;
	pairs = (const void *)(sparse + 1);
	for (i = 0; i < sparse->nr_areas; i++) {
		u64 offset = pairs[2 * i], size = pairs[2 * i + 1];

		if (offset > info->size || size > info->size - offset ||
		    offset % PAGE_SIZE || size % PAGE_SIZE)
			return -EPROTO;
		region->areas[i].offset = offset;
		region->areas[i].size = size;
	}
	region->nr_areas = sparse->nr_areas;
	return 0;
}

int vfu_region_info(struct vfu_device *dev, int index,
		    struct vfu_region *region)
{
	struct {
		struct vfu_header header;
		union {
			struct vfu_region_info info;
			u8 bytes[1024];
		};
	} reply = {
		.info.argsz = sizeof(reply.bytes),
		.info.index = index,
	};
	struct vfu_region_info *info = &reply.info;
	int i, len, fd = -1, err;

	len = vfu_call(dev, VFU_GET_REGION_INFO, &reply,
		       sizeof(reply.header) + sizeof(*info), sizeof(reply),
		       -1, &fd);
	if (len < 0) {
		err = len;
		goto out;
	}
	len = min_t(int, len, sizeof(reply)) - sizeof(reply.header);
	err = len < sizeof(*info) ? -EPROTO :
		vfu_find_areas(reply.bytes, len, region);
	if (err)
		goto out;

	region->size = info->size;
	region->writable = info->flags & VFU_REGION_WRITABLE;
	/* A store that nobody answers has no place in virtual time. */
	if (fd < 0 || um_irq_timetravel_handler_used())
		region->nr_areas = 0;
	for (i = 0; i < region->nr_areas; i++) {
		struct vfu_area *area = &region->areas[i];

		area->at = pci_socket_map(fd, info->offset + area->offset,
					  area->size, region->writable);
		if (!area->at) {
			pr_err("vfio_user: %s: region %d cannot be mapped: the server's file may be too short\n",
			       dev->path, index);
			err = -ENOMEM;
			region->nr_areas = i;
			break;
		}
	}
out:
	if (fd >= 0)
		pci_socket_close(fd);
	return err;
}

struct vfu_irq_set {
	struct vfu_header header;
	u32 argsz;
	u32 flags;
	u32 index;
	u32 start;
	u32 count;
};

#define VFU_IRQ_SET_SIZE	20

int vfu_irq_connect(struct vfu_device *dev, int index, u32 vector, int fd)
{
	struct vfu_irq_set set = {
		.argsz = VFU_IRQ_SET_SIZE,
		.flags = VFU_IRQ_DATA_EVENTFD | VFU_IRQ_TRIGGER,
		.index = index,
		.start = vector,
		.count = 1,
	};
	int ret = vfu_call(dev, VFU_SET_IRQS, &set, sizeof(set), sizeof(set),
			   fd, NULL);

	return ret < 0 ? ret : 0;
}

int vfu_irq_disable(struct vfu_device *dev, int index)
{
	struct vfu_irq_set set = {
		.argsz = VFU_IRQ_SET_SIZE,
		.flags = VFU_IRQ_DATA_NONE | VFU_IRQ_TRIGGER,
		.index = index,
	};
	int ret = vfu_call(dev, VFU_SET_IRQS, &set, sizeof(set), sizeof(set),
			   -1, NULL);

	return ret < 0 ? ret : 0;
}

/*
 * Lets INTx be delivered again. Nobody waits for it: it comes after the
 * register accesses that quieted the line, in the same stream. In virtual time
 * all is waited for.
 */
int vfu_irq_unmask(struct vfu_device *dev)
{
	struct vfu_irq_set set = {
		.argsz = VFU_IRQ_SET_SIZE,
		.flags = VFU_IRQ_DATA_NONE | VFU_IRQ_UNMASK,
		.index = VFU_IRQ_INTX,
		.count = 1,
	};

	int ret;

	if (!um_irq_timetravel_handler_used())
		return vfu_send(dev, &set, sizeof(set), VFU_SET_IRQS, NULL, 0,
				-1, VFU_NO_REPLY);
	ret = vfu_call(dev, VFU_SET_IRQS, &set, sizeof(set), sizeof(set), -1,
		       NULL);
	return ret < 0 ? ret : 0;
}

/* VERSION: the same major version, and what the server can do as JSON. */
int vfu_wire_open(struct vfu_device *dev)
{
	struct {
		struct vfu_header header;
		u16 major;
		u16 minor;
		char json[VFU_MAX_DATA];
	} *version;
	int ret;

	dev->fd = pci_socket_connect(dev->path, vfu_timeout_ms);
	if (dev->fd < 0)
		return dev->fd;
	dev->dead = false;
	dev->rx_len = 0;

	version = kzalloc(sizeof(*version), GFP_KERNEL);
	if (!version) {
		ret = -ENOMEM;
		goto fail;
	}
	memcpy(version->json, vfu_capabilities, sizeof(vfu_capabilities));
	ret = vfu_call(dev, VFU_VERSION, version,
		       offsetof(typeof(*version), json) +
		       sizeof(vfu_capabilities), sizeof(*version) - 1, -1,
		       NULL);
	if (ret >= 0 && ret < (int)offsetof(typeof(*version), json))
		ret = -EPROTO;
	if (ret >= 0 && version->major != 0) {
		pr_err("vfio_user: %s: the server speaks version %u.%u, this kernel 0.0\n",
		       dev->path, version->major, version->minor);
		ret = -EPROTONOSUPPORT;
	}
	if (ret >= 0) {
		const char *key = "\"max_data_xfer_size\":";
		const char *at = strstr(version->json, key);

		if (at && simple_strtoul(skip_spaces(at + strlen(key)), NULL,
					 10) < VFU_MAX_DATA) {
			pr_err("vfio_user: %s: the server takes fewer than %d bytes at a time\n",
			       dev->path, VFU_MAX_DATA);
			ret = -EPROTONOSUPPORT;
		}
	}
	dev->strings = ret >= 0 &&
		       strstr(version->json, "\"port_strings\":true");
	kfree(version);
	if (ret >= 0)
		return 0;
fail:
	vfu_wire_close(dev);
	return ret;
}

void vfu_wire_close(struct vfu_device *dev)
{
	int i, j;

	for (i = 0; i < VFU_NUM_REGIONS; i++) {
		struct vfu_region *region = &dev->regions[i];

		for (j = 0; j < region->nr_areas; j++)
			pci_socket_unmap(region->areas[j].at,
					 region->areas[j].size);
		region->nr_areas = 0;
	}
	dev->dead = true;
	pci_socket_close(dev->fd);
	dev->fd = -1;
}
