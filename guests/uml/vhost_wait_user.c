// SPDX-License-Identifier: GPL-2.0-only
/*
 * Host side of vhost_wait.h.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <os.h>

#include "vhost_wait.h"

static long long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static int wait_for(int fd, short events, unsigned int timeout_ms,
		    long long *end)
{
	struct pollfd wanted = { .fd = fd, .events = events };
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

int vhost_wait_readable(int fd, unsigned int timeout_ms, long long *end)
{
	return wait_for(fd, POLLIN, timeout_ms, end);
}

int vhost_connect(const char *path, unsigned int timeout_ms)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval limit = {
		.tv_sec = timeout_ms / 1000,
		.tv_usec = timeout_ms % 1000 * 1000,
	};
	long long end = now_ms() + timeout_ms;
	int fd, err;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (fd < 0)
		return -errno;
	/* For a server that accepts nobody, and whose queue is full. */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
		goto fail;
	while (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		if (errno == EINTR && now_ms() < end)
			continue;
		if (errno == EINTR || errno == EAGAIN)
			errno = ETIMEDOUT;
		goto fail;
	}
	/* From here on, who waits says how long. */
	limit = (struct timeval) { };
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
		goto fail;
	return fd;

fail:
	err = -errno;
	close(fd);
	return err;
}

int vhost_send(int fd, const void *buf, unsigned int len, const int *fds,
	       unsigned int fds_num, unsigned int timeout_ms)
{
	unsigned int sent = 0;
	long long end = 0;
	int n;

	while (sent < len) {
		n = wait_for(fd, POLLOUT, timeout_ms, &end);
		if (n)
			return n;
		/* Descriptors go with the first byte, once. */
		n = os_sendmsg_fds(fd, (const char *)buf + sent, len - sent,
				   sent ? NULL : fds, sent ? 0 : fds_num);
		if (n < 0 && n != -EINTR)
			return n;
		if (n > 0)
			sent += n;
	}
	return sent;
}
