// SPDX-License-Identifier: GPL-2.0-only
/*
 * Host side of vhost_wait.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <os.h>

#include "vhost_wait.h"

static int wait_for(int fd, short events, unsigned int timeout_ms,
		    long long *end)
{
	struct pollfd wanted = { .fd = fd, .events = events };
	long long left;
	int n;

	if (!*end)
		*end = host_now_ms() + timeout_ms;
	do {
		left = *end - host_now_ms();
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
	/* Once it is connected, who waits says how long. */
	struct timeval no_limit = { };
	int fd = host_connect(path, timeout_ms);
	int err;

	if (fd < 0 || !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &no_limit,
				  sizeof(no_limit)))
		return fd;
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

int vhost_kick_pipe(int *server_end)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK))
		return -errno;
	*server_end = fds[0];
	return fds[1];
}
