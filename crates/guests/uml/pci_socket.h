/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the PCI back ends of a user-mode kernel need of their host: a UNIX
 * stream socket with descriptors and bounded waits, pipes that interrupt, and
 * maps of other processes' memory. Nothing here knows a protocol.
 *
 * Included from both sides of UML: by kernel code, and by pci_socket_user.c,
 * which is compiled against the host's headers.
 */
#ifndef __UM_PCI_SOCKET_H
#define __UM_PCI_SOCKET_H

/* Most descriptors that go out with one message. */
#define PCI_SOCKET_MAX_FDS	8

/*
 * The wait for one answer, however many pieces it comes in and whatever is
 * said meanwhile: begins with its timeout alone.
 */
struct pci_socket_wait {
	unsigned int timeout_ms;
	unsigned int calls;
	unsigned long long since;
};

int pci_socket_connect(const char *path, unsigned int timeout_ms);
int pci_socket_adopt(int fd, unsigned int timeout_ms);
int pci_socket_send(int fd, const void *head, unsigned long head_len,
		    const void *data, unsigned long data_len,
		    const int *fds, int nfds, struct pci_socket_wait *wait);
int pci_socket_recv(int fd, void *buf, unsigned long len, int *passed,
		    struct pci_socket_wait *wait);
void pci_socket_shutdown(int fd);
void pci_socket_close(int fd);

int pci_socket_pipe(int *read_end, int *write_end, int signals);
int pci_socket_drain(int fd);
int pci_socket_kick(int fd, unsigned long long value);
int pci_socket_epoll(void);
int pci_socket_watch(int epoll_fd, int fd, unsigned int token);
void pci_socket_unwatch(int epoll_fd, int fd);
int pci_socket_ready(int epoll_fd, unsigned int *tokens, int max);

void *pci_socket_map(int fd, unsigned long long offset, unsigned long size,
		     int writable);
void pci_socket_unmap(void *address, unsigned long size);

#endif /* __UM_PCI_SOCKET_H */
