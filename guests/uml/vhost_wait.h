/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A bounded wait for a vhost-user server's answer (see apply, virtio_uml.c).
 */
#ifndef __UM_VHOST_WAIT_H
#define __UM_VHOST_WAIT_H

/*
 * 0 once there is something to be read or the other end has gone, -ETIMEDOUT, or another error. @end, which begins with 0, is
 * when all waits that are given it are over.
 */
int vhost_wait_readable(int fd, unsigned int timeout_ms, long long *end);

#endif
