// SPDX-License-Identifier: GPL-2.0-only
/*
 * Host side of vhost_wait.h.
 */
#include <errno.h>
#include <poll.h>
#include <time.h>

#include "vhost_wait.h"

static long long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

int vhost_wait_readable(int fd, unsigned int timeout_ms, long long *end)
{
	struct pollfd wanted = { .fd = fd, .events = POLLIN };
	long long left;
	int n;

	if (!*end)
		*end = now_ms() + timeout_ms;
	do {
		left = *end - now_ms();
		n = poll(&wanted, 1, left < 0 ? 0 : left);
		/* UML's timer interrupts the wait. */
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n ? 0 : -ETIMEDOUT;
}
