// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whether a device's registers are the same by accesses of every width.
 *
 *	echo "SLOT BAR OFFSET LENGTH [w]" >/sys/module/um_pci/parameters/selftest
 *
 * reads that piece of a memory BAR in bytes, words, dwords, quadwords and as a
 * block (memcpy_fromio()), and says in one kernel message which of them agree
 * with the block; the write fails with EIO unless all do. With "w" it then
 * writes by memset_io() and, different patterns, in each of those ways, and says
 * which of them arrived; the last is left there. It goes the way of a driver:
 * ioremap() and what follows from it. Reading may have effects, and writing has:
 * it is for registers that have none.
 */
#include <linux/io.h>
#include <linux/kernel.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/unaligned.h>

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "um_pci."

#define UM_PCI_TEST_MOST	PAGE_SIZE

/* Bytes at a time. */
static const int um_pci_widths[] = { 1, 2, 4, 8 };

static void um_pci_read_by(void __iomem *at, u8 *to, int length, int width)
{
	int i;

	for (i = 0; i < length; i += width) {
		if (width == 1)
			to[i] = readb(at + i);
		else if (width == 2)
			put_unaligned_le16(readw(at + i), to + i);
		else if (width == 4)
			put_unaligned_le32(readl(at + i), to + i);
		else
			put_unaligned_le64(readq(at + i), to + i);
	}
}

static void um_pci_write_by(void __iomem *at, const u8 *from, int length,
			    int width)
{
	int i;

	for (i = 0; i < length; i += width) {
		if (width == 1)
			writeb(from[i], at + i);
		else if (width == 2)
			writew(get_unaligned_le16(from + i), at + i);
		else if (width == 4)
			writel(get_unaligned_le32(from + i), at + i);
		else
			writeq(get_unaligned_le64(from + i), at + i);
	}
}

/* Appends which ways of reading gave what the block gave, and which did not. */
static int um_pci_test_reads(void __iomem *at, u8 *block, u8 *other, int length,
			     char *said)
{
	char not[32] = "";
	int w;

	memcpy_fromio(block, at, length);
	strcat(said, "read alike: block");
	for (w = 0; w < ARRAY_SIZE(um_pci_widths); w++) {
		int width = um_pci_widths[w];
		char *list;

		if (length % width)
			continue;
		um_pci_read_by(at, other, length, width);
		list = memcmp(block, other, length) ? not : said;
		sprintf(list + strlen(list), " %d", width);
	}
	if (*not)
		sprintf(said + strlen(said), "; otherwise:%s", not);
	return *not ? -EIO : 0;
}

static bool um_pci_arrived(void __iomem *at, const u8 *wanted, u8 *other,
			   int length)
{
	memcpy_fromio(other, at, length);
	return !memcmp(wanted, other, length);
}

/* A pattern of its own for each way, none of which has been there before. */
static void um_pci_pattern(u8 *to, int length, int way)
{
	int i;

	for (i = 0; i < length; i++)
		to[i] = 37 * i + 0x11 * (way + 1);
}

static void um_pci_test_writes(void __iomem *at, u8 *wanted, u8 *other,
			       int length, char *said)
{
	int w;

	strcat(said, "; written and found:");
	memset(wanted, 0xa6, length);
	memset_io(at, 0xa6, length);
	if (um_pci_arrived(at, wanted, other, length))
		strcat(said, " set");
	for (w = 0; w < ARRAY_SIZE(um_pci_widths); w++) {
		int width = um_pci_widths[w];

		if (length % width)
			continue;
		um_pci_pattern(wanted, length, w);
		um_pci_write_by(at, wanted, length, width);
		if (um_pci_arrived(at, wanted, other, length))
			sprintf(said + strlen(said), " %d", width);
	}
	um_pci_pattern(wanted, length, w);
	memcpy_toio(at, wanted, length);
	if (um_pci_arrived(at, wanted, other, length))
		strcat(said, " block");
}

static int um_pci_test(struct pci_dev *dev, int bar, unsigned int offset,
		       unsigned int length, bool writes)
{
	u8 *bytes = kmalloc_array(2, length, GFP_KERNEL);
	void __iomem *at = pci_iomap(dev, bar, 0);
	char said[160] = "";
	int err = -ENOMEM;

	if (bytes && at) {
		err = um_pci_test_reads(at + offset, bytes, bytes + length,
					length, said);
		if (writes)
			um_pci_test_writes(at + offset, bytes, bytes + length,
					   length, said);
		pr_info("um_pci: %s BAR %d, %u bytes at %#x: %s\n",
			pci_name(dev), bar, length, offset, said);
	}
	if (at)
		pci_iounmap(dev, at);
	kfree(bytes);
	return err;
}

static int um_pci_selftest_set(const char *text, const struct kernel_param *kp)
{
	unsigned int slot, bar;
	struct pci_dev *dev;
	char writes = ' ';
	int offset, length, err = -EINVAL;

	if (sscanf(text, "%u %u %i %i %c", &slot, &bar, &offset, &length,
		   &writes) < 4 || bar >= PCI_STD_NUM_BARS)
		return -EINVAL;
	dev = pci_get_domain_bus_and_slot(0, 0, PCI_DEVFN(slot, 0));
	if (!dev)
		return -ENODEV;
	if (length > 0 && length <= UM_PCI_TEST_MOST && offset >= 0 &&
	    (pci_resource_flags(dev, bar) & IORESOURCE_MEM) &&
	    (u64)offset + length <= pci_resource_len(dev, bar))
		err = um_pci_test(dev, bar, offset, length, writes == 'w');
	pci_dev_put(dev);
	return err;
}

static const struct kernel_param_ops um_pci_selftest_ops = {
	.set = um_pci_selftest_set,
};

device_param_cb(selftest, &um_pci_selftest_ops, NULL, 0200);
