/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A connection to another process of the host, and the host's clock: what
 * pci_socket_user.c and vhost_wait_user.c have in common.
 */
#ifndef __UM_HOST_CONNECT_H
#define __UM_HOST_CONNECT_H

/* Milliseconds by a clock of the host that nobody sets. */
long long host_now_ms(void);

/*
 * How long an answer took that was waited for since @begun, if it is to be
 * told of, else 0: it took a second, or a fifth of what it may, and @told,
 * which begins with 0, is a minute ago.
 */
int host_slow_ms(long long begun, unsigned int timeout_ms, long long *told);

/*
 * A socket that is connected to @path, or an error. Waits @timeout_ms at most
 * (no less than 1) for a server that accepts nobody and whose queue is full;
 * the socket keeps that as the limit of each send.
 */
int host_connect(const char *path, unsigned int timeout_ms);

#endif
