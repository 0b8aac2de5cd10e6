// SPDX-License-Identifier: GPL-2.0-only
/*
 * Host side of host_connect.h.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "host_connect.h"

long long host_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

int host_slow_ms(long long begun, unsigned int timeout_ms, long long *told)
{
	unsigned int slow_ms = timeout_ms < 5000 ? timeout_ms / 5 : 1000;
	long long now = host_now_ms();

	if (now - begun < slow_ms || (*told && now - *told < 60000))
		return 0;
	*told = now;
	return now - begun;
}

int host_connect(const char *path, unsigned int timeout_ms)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	/* For the host, no time is no limit. */
	unsigned int limit_ms = timeout_ms ? timeout_ms : 1;
	struct timeval limit = {
		.tv_sec = limit_ms / 1000,
		.tv_usec = limit_ms % 1000 * 1000,
	};
	long long end = host_now_ms() + limit_ms;
	int fd, err;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
		goto fail;
	while (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		/* UML's timer interrupts the wait. */
		if (errno == EINTR && host_now_ms() < end)
			continue;
		if (errno == EINTR || errno == EAGAIN)
			errno = ETIMEDOUT;
		goto fail;
	}
	return fd;

fail:
	err = -errno;
	close(fd);
	return err;
}
