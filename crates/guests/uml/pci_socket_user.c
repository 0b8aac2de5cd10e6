// SPDX-License-Identifier: GPL-2.0-only
/*
 * Host side of pci_socket.h.
 *
 * Every wait ends: the socket has send and receive timeouts, and what signals
 * interrupt (UML's timer is one), or what comes in pieces, is counted from its
 * first interruption or second piece, so that nothing is waited for longer
 * than three times its timeout. An answer in one piece needs no clock.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>
#include <os.h>

#include "host_connect.h"
#include "pci_socket.h"

#define MAX_READY	16

/* 0, or -ETIMEDOUT once it is asked so long after the first time. @since is 0 before that. */
static int late(unsigned long long *since, unsigned int timeout_ms)
{
	if (!*since)
		*since = host_now_ms();
	else if (host_now_ms() - *since >= timeout_ms)
		return -ETIMEDOUT;
	return 0;
}

/* A call on the socket has failed: 0 if it is to be tried again, else why not. */
static int again(unsigned long long *since, unsigned int timeout_ms)
{
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		return -ETIMEDOUT;
	if (errno != EINTR)
		return -errno;
	return late(since, timeout_ms);
}

int pci_socket_adopt(int fd, unsigned int timeout_ms)
{
	/* For the host, no time is no limit. */
	unsigned int limit_ms = timeout_ms ? timeout_ms : 1;
	struct timeval t = {
		.tv_sec = limit_ms / 1000,
		.tv_usec = limit_ms % 1000 * 1000,
	};

	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) < 0 ||
	    fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return -errno;
	return 0;
}

int pci_socket_connect(const char *path, unsigned int timeout_ms)
{
	int fd = host_connect(path, timeout_ms);
	int err;

	if (fd < 0)
		return fd;
	err = pci_socket_adopt(fd, timeout_ms);
	if (!err)
		return fd;
	close(fd);
	return err;
}

int pci_socket_send(int fd, const void *head, unsigned long head_len,
		    const void *data, unsigned long data_len,
		    const int *fds, int nfds, struct pci_socket_wait *wait)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * PCI_SOCKET_MAX_FDS)];
		struct cmsghdr align;
	} control;
	struct iovec iov[2] = {
		{ .iov_base = (void *)head, .iov_len = head_len },
		{ .iov_base = (void *)data, .iov_len = data_len },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = data_len ? 2 : 1 };
	unsigned long left = head_len + data_len;

	if (nfds > PCI_SOCKET_MAX_FDS)
		return -EINVAL;
	if (nfds) {
		struct cmsghdr *cmsg;

		memset(&control, 0, sizeof(control));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
		memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * nfds);
	}

	while (left) {
		ssize_t n;

		if (wait->calls++ && late(&wait->since, wait->timeout_ms))
			return -ETIMEDOUT;
		n = sendmsg(fd, &msg, MSG_NOSIGNAL);
		if (n < 0) {
			int err = again(&wait->since, wait->timeout_ms);

			if (err)
				return err;
			continue;
		}
		left -= n;
		/* Descriptors go with the first byte, once. */
		msg.msg_control = NULL;
		msg.msg_controllen = 0;
		while (left && (size_t)n >= msg.msg_iov->iov_len) {
			n -= msg.msg_iov->iov_len;
			msg.msg_iov++;
			msg.msg_iovlen--;
		}
		msg.msg_iov->iov_base = (char *)msg.msg_iov->iov_base + n;
		msg.msg_iov->iov_len -= n;
	}
	return 0;
}

/* Keeps the first descriptor that has come along, and closes all others. */
static void keep_one(struct msghdr *msg, int *passed)
{
	struct cmsghdr *cmsg;

	for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		size_t count, i;

		if (cmsg->cmsg_level != SOL_SOCKET ||
		    cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(fd), sizeof(fd));
			if (*passed < 0)
				*passed = fd;
			else
				close(fd);
		}
	}
}

/*
 * Up to @len bytes, at least one. If @passed is not NULL, a descriptor that
 * comes along is put there unless there is one; all others are closed. (The
 * host closes what there is no room for, here and where @passed is NULL.)
 */
int pci_socket_recv(int fd, void *buf, unsigned long len, int *passed,
		    struct pci_socket_wait *wait)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = { .iov_base = buf, .iov_len = len };
	struct msghdr msg;
	int flags = 0;
	ssize_t n;

	if (wait->calls++ && late(&wait->since, wait->timeout_ms))
		return -ETIMEDOUT;

	for (;;) {
		if (passed) {
			msg = (struct msghdr) {
				.msg_iov = &iov,
				.msg_iovlen = 1,
				.msg_control = control.bytes,
				.msg_controllen = sizeof(control.bytes),
			};
			n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | flags);
		} else {
			n = recv(fd, buf, len, flags);
		}
		if (n > 0)
			break;
		if (n == 0)
			return -ECONNRESET;
		n = again(&wait->since, wait->timeout_ms);
		/* Both sides may have been stopped: the answer may be there. */
		if (n == -ETIMEDOUT && !flags)
			flags = MSG_DONTWAIT;
		else if (n)
			return n;
	}

	if (passed)
		keep_one(&msg, passed);
	return n;
}

void pci_socket_shutdown(int fd)
{
	shutdown(fd, SHUT_RDWR);
}

void pci_socket_close(int fd)
{
	close(fd);
}

/*
 * A pipe whose read end sends SIGIO, if that is asked for. It stands in for an
 * eventfd, which cannot: the writer does the same (eight bytes), and does not
 * block on a full one.
 */
int pci_socket_pipe(int *read_end, int *write_end, int signals)
{
	int fds[2], err;

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	err = signals ? os_set_fd_async(fds[0]) : 0;
	if (err < 0) {
		close(fds[0]);
		close(fds[1]);
		return err;
	}
	*read_end = fds[0];
	*write_end = fds[1];
	return 0;
}

/*
 * Empties a pipe: how many interrupts, of eight bytes each, were in it, -EPIPE if
 * its writer is gone.
 */
int pci_socket_drain(int fd)
{
	char bytes[1024];
	int found = 0, reads = 0;
	ssize_t n;

	for (;;) {
		n = read(fd, bytes, sizeof(bytes));
		if (n > 0)
			found += n;
		/* A whole pipe of it is enough of a server that writes without end. */
		if (n == (ssize_t)sizeof(bytes) && ++reads < 64)
			continue;
		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0 && !found)
			return -EPIPE;
		return (found + 7) / 8;
	}
}

int pci_socket_kick(int fd, unsigned long long value)
{
	ssize_t n;

	do {
		n = write(fd, &value, sizeof(value));
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int pci_socket_epoll(void)
{
	int fd = epoll_create1(EPOLL_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int pci_socket_watch(int epoll_fd, int fd, unsigned int token)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = token };

	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

void pci_socket_unwatch(int epoll_fd, int fd)
{
	struct epoll_event event = { };

	if (fd < 0)
		return;
	epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &event);
}

/* The tokens of what is readable now; at most @max, and never waits. */
int pci_socket_ready(int epoll_fd, unsigned int *tokens, int max)
{
	struct epoll_event events[MAX_READY];
	int n, i;

	if (max > MAX_READY)
		max = MAX_READY;
	do {
		n = epoll_wait(epoll_fd, events, max, 0);
	} while (n < 0 && errno == EINTR);
	for (i = 0; i < n; i++)
		tokens[i] = events[i].data.u32;
	return n < 0 ? 0 : n;
}

void *pci_socket_map(int fd, unsigned long long offset, unsigned long size,
		     int writable)
{
	struct stat file;
	void *at;

	/* Who touches what lies beyond the end of a file dies of it. */
	if (fstat(fd, &file) < 0 ||
	    (S_ISREG(file.st_mode) && (file.st_size < 0 ||
	     offset > (unsigned long long)file.st_size ||
	     size > (unsigned long long)file.st_size - offset)))
		return NULL;
	at = mmap(NULL, size, PROT_READ | (writable ? PROT_WRITE : 0),
		  MAP_SHARED, fd, offset);
	return at == MAP_FAILED ? NULL : at;
}

void pci_socket_unmap(void *address, unsigned long size)
{
	munmap(address, size);
}
