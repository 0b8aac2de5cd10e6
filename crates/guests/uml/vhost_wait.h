/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bounded waits for a vhost-user server (see changes-virtio): that it takes a connection, a message, a kick, and answers.
 */
#ifndef __UM_VHOST_WAIT_H
#define __UM_VHOST_WAIT_H

#include "host_connect.h"

/*
 * 0 once there is something to be read or the other end has gone, -ETIMEDOUT, or another error. @end, which begins with 0, is
 * when all waits that are given it are over.
 */
int vhost_wait_readable(int fd, unsigned int timeout_ms, long long *end);

/* A socket that is connected to @path, or an error. */
int vhost_connect(const char *path, unsigned int timeout_ms);

/* As os_sendmsg_fds(), but all of it: @len, or an error. */
int vhost_send(int fd, const void *buf, unsigned int len, const int *fds,
	       unsigned int fds_num, unsigned int timeout_ms);

/*
 * A pipe for kicks: the end that is written to, which is never waited for, or an error; and the server's. A full pipe is
 * -EAGAIN.
 */
int vhost_kick_pipe(int *server_end);

#endif
