/* Ids of rdma_cm on one event channel, each on the device that its address has: run by tests/interop.sh.
 *
 *   worlds serve PORT COUNT [ADDRESS]          echoes to COUNT peers; listens on all addresses, or on one
 *   worlds endpoint PORT COUNT                 the same, by rdma_get_request
 *   worlds connect PORT ADDRESS=DEVICE...      all at once, on one channel; each must get a device of which the name
 *                                              starts with DEVICE
 *   worlds taken PORT ADDRESS ADDRESS          what is left where a port is taken on a software device, which has the
 *                                              first address, or on the kernel's, which has the second
 *   worlds removal ADDRESS DEVICE              an id and a queue pair on a device that then is removed, and added again
 *
 * Every message is verified. Exit status 0 when all was as it should be.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE 4096
#define MOST 8
#define LIMIT 30000 /* milliseconds without any event */

#define CHECK(what)                                                                                                        \
	do {                                                                                                               \
		if (!(what)) {                                                                                             \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));                             \
			exit(1);                                                                                           \
		}                                                                                                          \
	} while (0)

struct peer {
	struct rdma_cm_id *id;
	const char *device; /* the name it starts with, where one is asked for */
	char data[2 * SIZE]; /* received, sent */
	struct ibv_mr *mr;
	int seed, ended;
};

static struct peer peers[MOST];

static void fill(char *data, int seed)
{
	for (int i = 0; i < SIZE; i++)
		data[i] = (char)(seed + i * 7);
}

static void receive(struct peer *peer)
{
	CHECK(rdma_post_recv(peer->id, peer, peer->data, SIZE, peer->mr) == 0);
}

static void send_all(struct peer *peer)
{
	CHECK(rdma_post_send(peer->id, peer, peer->data + SIZE, SIZE, peer->mr, IBV_SEND_SIGNALED) == 0);
}

static void completed(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n = 0;
	for (long i = 0; n == 0; i++) {
		n = ibv_poll_cq(cq, 1, &wc);
		if (n == 0 && i % 1000 == 999)
			usleep(100);
		CHECK(i < 100000000);
	}
	CHECK(n == 1);
	if (wc.status != IBV_WC_SUCCESS) {
		printf("a completion says %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static void equip(struct peer *peer)
{
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	if (!peer->id->qp)
		CHECK(rdma_create_qp(peer->id, NULL, &attr) == 0);
	peer->mr = rdma_reg_msgs(peer->id, peer->data, sizeof peer->data);
	CHECK(peer->mr);
	receive(peer);
}

static const char *device(struct rdma_cm_id *id)
{
	return id->verbs ? ibv_get_device_name(id->verbs->device) : "no device";
}

static void release(struct peer *peer)
{
	if (peer->mr)
		CHECK(rdma_dereg_mr(peer->mr) == 0);
	if (peer->id->qp)
		rdma_destroy_qp(peer->id);
	CHECK(rdma_destroy_id(peer->id) == 0);
}

/* The next event: by poll(2), since the descriptor is O_NONBLOCK. */
static struct rdma_cm_event *next(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	struct pollfd fd = { channel->fd, POLLIN, 0 };
	for (;;) {
		if (rdma_get_cm_event(channel, &event) == 0)
			return event;
		CHECK(errno == EAGAIN);
		if (poll(&fd, 1, LIMIT) == 0) {
			printf("no event for %d ms\n", LIMIT);
			exit(1);
		}
	}
}

static struct rdma_event_channel *channel_of_both(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	return channel;
}

static struct sockaddr *address(const char *text, int port)
{
	static struct sockaddr_storage out;
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV }, *found;
	char service[8];
	snprintf(service, sizeof service, "%d", port);
	CHECK(getaddrinfo(text, service, &hints, &found) == 0);
	memcpy(&out, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return (struct sockaddr *)&out;
}

static const char *name_of(struct sockaddr *addr)
{
	static char text[64];
	CHECK(getnameinfo(addr, sizeof(struct sockaddr_storage), text, sizeof text, NULL, 0, NI_NUMERICHOST) == 0);
	return text;
}

/* What came goes back. */
static void answer(struct peer *peer)
{
	completed(peer->id->recv_cq);
	memcpy(peer->data + SIZE, peer->data, SIZE);
	send_all(peer);
	completed(peer->id->send_cq);
	printf("answered %s on %s\n", name_of(rdma_get_peer_addr(peer->id)), device(peer->id));
}

static void serve(int port, int count, const char *where)
{
	struct rdma_event_channel *channel = channel_of_both();
	struct rdma_cm_id *listener;
	int n = 0, ended = 0;
	CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, address(where, port)) == 0);
	CHECK(rdma_listen(listener, 8) == 0);
	CHECK(ntohs(rdma_get_src_port(listener)) == port);
	printf("listening on %s, %s\n", where, device(listener));
	while (ended < count) {
		struct rdma_cm_event *event = next(channel);
		struct peer *peer;
		switch (event->event) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			CHECK(n < MOST && event->listen_id == listener);
			peer = &peers[n++];
			peer->id = event->id;
			peer->id->context = peer;
			equip(peer);
			CHECK(rdma_accept(peer->id, NULL) == 0);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			answer(event->id->context);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			((struct peer *)event->id->context)->ended = 1;
			ended++;
			break;
		default:
			printf("%s, status %d\n", rdma_event_str(event->event), event->status);
			CHECK(event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT);
		}
		CHECK(rdma_ack_cm_event(event) == 0);
	}
	for (int i = 0; i < n; i++) {
		rdma_disconnect(peers[i].id);
		release(&peers[i]);
	}
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
}

static void endpoint(const char *port, int count)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_cm_id *listener;
	CHECK(rdma_getaddrinfo(NULL, port, &hints, &found) == 0);
	CHECK(rdma_create_ep(&listener, found, NULL, &attr) == 0);
	rdma_freeaddrinfo(found);
	CHECK(rdma_listen(listener, 0) == 0);
	printf("listening on all, %s\n", device(listener));
	for (int i = 0; i < count; i++) {
		struct peer *peer = &peers[i];
		CHECK(rdma_get_request(listener, &peer->id) == 0);
		equip(peer);
		CHECK(rdma_accept(peer->id, NULL) == 0);
		answer(peer);
	}
	for (int i = 0; i < count; i++) {
		rdma_disconnect(peers[i].id);
		CHECK(rdma_dereg_mr(peers[i].mr) == 0);
		rdma_destroy_ep(peers[i].id);
	}
	rdma_destroy_ep(listener);
}

static void connect_all(int port, char **words, int count)
{
	struct rdma_event_channel *channel = channel_of_both(), *other = channel_of_both();
	int done = 0;
	CHECK(count <= MOST);
	for (int i = 0; i < count; i++) {
		char *wanted = strchr(words[i], '=');
		CHECK(wanted);
		*wanted = 0;
		peers[i].device = wanted + 1;
		peers[i].seed = i + 1;
		CHECK(rdma_create_id(channel, &peers[i].id, &peers[i], RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(peers[i].id, NULL, address(words[i], port), 2000) == 0);
	}
	while (done < count) {
		struct rdma_cm_event *event = next(channel);
		struct rdma_cm_id *id = event->id;
		struct peer *peer = id->context;
		enum rdma_cm_event_type kind = event->event;
		int status = event->status;
		CHECK(rdma_ack_cm_event(event) == 0);
		switch (kind) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			if (strncmp(device(id), peer->device, strlen(peer->device)) != 0) {
				printf("%s is on %s and not on %s\n", name_of(rdma_get_peer_addr(id)), device(id),
				       peer->device);
				exit(1);
			}
			/* There and back. */
			CHECK(rdma_migrate_id(id, other) == 0);
			CHECK(id->channel == other);
			CHECK(rdma_migrate_id(id, channel) == 0);
			CHECK(rdma_resolve_route(id, 2000) == 0);
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			equip(peer);
			struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
			CHECK(rdma_connect(id, &param) == 0);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			fill(peer->data + SIZE, peer->seed);
			send_all(peer);
			completed(id->send_cq);
			completed(id->recv_cq);
			CHECK(memcmp(peer->data, peer->data + SIZE, SIZE) == 0);
			printf("answered by %s over %s\n", name_of(rdma_get_peer_addr(id)), device(id));
			done++;
			break;
		default:
			printf("%s: %s, status %d\n", name_of(rdma_get_peer_addr(id)), rdma_event_str(kind), status);
			exit(1);
		}
	}
	for (int i = 0; i < count; i++)
		CHECK(rdma_disconnect(peers[i].id) == 0);
	for (int i = 0; i < count; i++)
		release(&peers[i]);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
}

static struct rdma_cm_id *id_on(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	return id;
}

static void taken(int port, const char *soft, const char *kernels)
{
	struct rdma_event_channel *channel = channel_of_both();
	struct rdma_cm_id *ours = id_on(channel), *theirs = id_on(channel), *all = id_on(channel);
	CHECK(rdma_bind_addr(ours, address(soft, port)) == 0);
	CHECK(rdma_bind_addr(all, address("0.0.0.0", port)) == -1 && errno == EADDRINUSE);
	CHECK(!all->verbs && rdma_get_src_port(all) == 0);
	/* Of the kernel's ports none stayed taken. */
	CHECK(rdma_bind_addr(theirs, address(kernels, port)) == 0);
	CHECK(rdma_destroy_id(ours) == 0);
	CHECK(rdma_bind_addr(all, address("0.0.0.0", port)) == -1 && errno == EADDRINUSE);
	/* Nor of ours. */
	ours = id_on(channel);
	CHECK(rdma_bind_addr(ours, address(soft, port)) == 0);
	CHECK(rdma_destroy_id(ours) == 0);
	CHECK(rdma_destroy_id(theirs) == 0);
	CHECK(rdma_bind_addr(all, address("0.0.0.0", port)) == 0);
	CHECK(rdma_listen(all, 0) == 0);
	CHECK(ntohs(rdma_get_src_port(all)) == port);
	CHECK(rdma_destroy_id(all) == 0);
	/* Without a port, and without a call of bind, there is one that is free in both. */
	all = id_on(channel);
	CHECK(rdma_listen(all, 0) == 0);
	CHECK(rdma_get_src_port(all) != 0);
	theirs = id_on(channel);
	port = ntohs(rdma_get_src_port(all));
	CHECK(rdma_bind_addr(theirs, address(kernels, port)) == -1 && errno == EADDRINUSE);
	CHECK(rdma_bind_addr(theirs, address(soft, port)) == -1 && errno == EADDRINUSE);
	/* An id that is of no world yet, and one that listens in both, go to other channels, too. */
	struct rdma_event_channel *other = channel_of_both();
	CHECK(rdma_migrate_id(theirs, other) == 0 && rdma_migrate_id(all, other) == 0);
	CHECK(rdma_destroy_id(all) == 0);
	CHECK(rdma_bind_addr(theirs, address(kernels, port)) == 0);
	CHECK(rdma_destroy_id(theirs) == 0);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
}

static int is_listed(const char *name)
{
	int count, found = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list);
	for (int i = 0; i < count; i++)
		found |= strcmp(ibv_get_device_name(list[i]), name) == 0;
	ibv_free_device_list(list);
	return found;
}

/* Says `ready`, then waits for the device to go; says `gone` when nothing of it is left, then waits for one of its name. */
static void removal(const char *where, const char *name)
{
	struct rdma_event_channel *channel = channel_of_both();
	struct peer *peer = &peers[0];
	struct rdma_cm_id *listener = id_on(channel), *bound = id_on(channel);
	struct rdma_cm_event *event;
	struct ibv_async_event fatal;
	int told = 0;
	CHECK(rdma_listen(listener, 0) == 0);
	CHECK(rdma_bind_addr(bound, address(where, 0)) == 0 && bound->verbs);
	peer->id = id_on(channel);
	CHECK(rdma_resolve_addr(peer->id, NULL, address(where, 7471), 2000) == 0);
	event = next(channel);
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && rdma_ack_cm_event(event) == 0);
	CHECK(strcmp(device(peer->id), name) == 0 && is_listed(name));
	equip(peer);
	struct ibv_context *verbs = peer->id->verbs;
	struct pollfd fd = { verbs->async_fd, POLLIN, 0 };
	printf("ready\n");
	while (told < 2) {
		event = next(channel);
		if (event->event == RDMA_CM_EVENT_ADDR_CHANGE) {
			rdma_ack_cm_event(event);
			continue;
		}
		printf("%s, status %d\n", rdma_event_str(event->event), event->status);
		CHECK(event->event == RDMA_CM_EVENT_DEVICE_REMOVAL);
		CHECK(event->id == bound || event->id == peer->id);
		CHECK(rdma_ack_cm_event(event) == 0);
		told++;
	}
	/* All that a program may still do with them. */
	CHECK(strcmp(device(bound), name) == 0 && rdma_get_src_port(bound) != 0);
	struct rdma_conn_param param = { 0 };
	CHECK(rdma_connect(peer->id, &param) == -1);
	CHECK(rdma_listen(bound, 0) == -1);
	printf("connect says %s\n", strerror(errno));
	if (poll(&fd, 1, 3000) == 1) {
		CHECK(ibv_get_async_event(verbs, &fatal) == 0);
		printf("%s\n", ibv_event_type_str(fatal.event_type));
		ibv_ack_async_event(&fatal);
	} else {
		printf("no asynchronous event\n");
	}
	release(peer);
	CHECK(rdma_destroy_id(bound) == 0);
	for (int i = 0; is_listed(name); i++) {
		CHECK(i < 300);
		usleep(100000);
	}
	printf("gone\n");
	for (int i = 0; !is_listed(name); i++) {
		CHECK(i < 300);
		usleep(100000);
	}
	bound = id_on(channel);
	CHECK(rdma_bind_addr(bound, address(where, 0)) == 0 && strcmp(device(bound), name) == 0);
	CHECK(rdma_destroy_id(bound) == 0);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
	printf("there again\n");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc >= 4 && strcmp(argv[1], "serve") == 0)
		serve(atoi(argv[2]), atoi(argv[3]), argc > 4 ? argv[4] : "0.0.0.0");
	else if (argc == 4 && strcmp(argv[1], "endpoint") == 0)
		endpoint(argv[2], atoi(argv[3]));
	else if (argc >= 4 && strcmp(argv[1], "connect") == 0)
		connect_all(atoi(argv[2]), argv + 3, argc - 3);
	else if (argc == 5 && strcmp(argv[1], "taken") == 0)
		taken(atoi(argv[2]), argv[3], argv[4]);
	else if (argc == 4 && strcmp(argv[1], "removal") == 0)
		removal(argv[2], argv[3]);
	else
		return 64;
	return 0;
}
