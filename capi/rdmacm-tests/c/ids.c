/* Devices, channels, ids and addresses: what needs no peer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "../../ibverbs-tests/c/harness.h"
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static struct sockaddr_in v4(uint32_t ip, uint16_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port),
				     .sin_addr.s_addr = htonl(ip) };
}

static void no_device(void)
{
	setenv("IRONVERBS_INTERFACES", "nothing", 1);
	int n = 7;
	struct rdma_cm_id *id;
	CHECK(!rdma_get_devices(&n));
	EQUAL(errno, ENODEV);
	EQUAL(n, 0);
	CHECK(!rdma_get_devices(NULL));
	CHECK(!rdma_create_event_channel());
	EQUAL(errno, ENODEV);
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), -1);
	EQUAL(errno, ENODEV);
	rdma_free_devices(NULL);
}

static void devices_are_shared_with_ids(void)
{
	int n = 0;
	struct ibv_context **list = rdma_get_devices(&n), **again = rdma_get_devices(NULL);
	CHECK(list && again && n > 0 && !list[n]);
	CHECK(list[0] == again[0]);
	struct ibv_context *first = list[0];
	rdma_free_devices(list);
	rdma_free_devices(again);
	struct ibv_device_attr attr;
	EQUAL(ibv_query_device(first, &attr), 0);
	CHECK(attr.node_guid);
	struct rdma_cm_id *id;
	struct sockaddr_in any = v4(INADDR_LOOPBACK, 0);
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(id, (struct sockaddr *)&any), 0);
	CHECK(id->verbs == first);
	EQUAL(rdma_destroy_id(id), 0);
}

static void channels_are_descriptors(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct sockaddr_in to = v4(INADDR_LOOPBACK, 1);
	CHECK(channel);
	EQUAL(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK), 0);
	EQUAL(rdma_get_cm_event(channel, &event), -1);
	EQUAL(errno, EAGAIN);
	EQUAL(rdma_create_id(channel, &id, &to, RDMA_PS_TCP), 0);
	CHECK(id->context == &to && id->channel == channel && id->ps == RDMA_PS_TCP);
	EQUAL(id->qp_type, IBV_QPT_RC);
	EQUAL(rdma_resolve_route(id, 100), -1);
	EQUAL(errno, EINVAL);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), 0);
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	EQUAL(poll(&fd, 1, 10000), 1);
	EQUAL(rdma_get_cm_event(channel, &event), 0);
	EQUAL(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	EQUAL(poll(&fd, 1, 0), 0);
	CHECK(id->verbs && rdma_get_local_addr(id)->sa_family == AF_INET);
	EQUAL(rdma_ack_cm_event(event), 0);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

static void ports(void)
{
	struct rdma_cm_id *a, *b;
	struct sockaddr_in here = v4(INADDR_LOOPBACK, 0), elsewhere = v4(0x0a636363, 0);
	int yes = 1;
	EQUAL(rdma_create_id(NULL, &a, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_create_id(NULL, &b, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(a, (struct sockaddr *)&elsewhere), -1);
	EQUAL(errno, EADDRNOTAVAIL);
	EQUAL(rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), 0);
	EQUAL(rdma_bind_addr(a, (struct sockaddr *)&here), 0);
	here.sin_port = rdma_get_src_port(a);
	CHECK(here.sin_port);
	EQUAL(rdma_bind_addr(b, (struct sockaddr *)&here), -1);
	EQUAL(errno, EADDRINUSE);
	EQUAL(rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), 0);
	EQUAL(rdma_bind_addr(b, (struct sockaddr *)&here), 0);
	EQUAL(rdma_destroy_id(b), 0);
	EQUAL(rdma_listen(a, 0), 0);
	EQUAL(rdma_destroy_id(a), 0);
}

static void options(void)
{
	struct rdma_cm_id *id;
	uint8_t byte = 14;
	int number = 1;
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1), 0);
	EQUAL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), 0);
	EQUAL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &number, sizeof number), 0);
	EQUAL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &number, sizeof number), -1);
	EQUAL(errno, EINVAL);
	EQUAL(rdma_set_option(id, RDMA_OPTION_ID, 99, &number, sizeof number), -1);
	EQUAL(errno, ENOSYS);
	EQUAL(rdma_destroy_id(id), 0);
	EQUAL(rdma_create_id(NULL, &id, NULL, 0x4711), -1);
	EQUAL(errno, EINVAL);
}

static void link_local_without_scope(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_in6 to = { .sin6_family = AF_INET6, .sin6_port = htons(1) };
	EQUAL(inet_pton(AF_INET6, "fe80::9", &to.sin6_addr), 1);
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 60000), -1);
	EQUAL(errno, EINVAL);
	EQUAL(rdma_destroy_id(id), 0);
}

static void synchronous_ids(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_in to = v4(INADDR_LOOPBACK, 1), nowhere = v4(0xf0000001, 1);
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	CHECK(id->channel && !id->event);
	EQUAL(rdma_migrate_id(id, NULL), -1);
	EQUAL(errno, EINVAL);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED && id->event->id == id);
	EQUAL(rdma_resolve_route(id, 2000), 0);
	EQUAL(id->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	EQUAL(rdma_create_qp(id, NULL, &init), 0);
	EQUAL(rdma_connect(id, NULL), -1);
	EQUAL(errno, ECONNREFUSED);
	EQUAL(id->event->event, RDMA_CM_EVENT_REJECTED);
	/* To a channel of the program's: asynchronous from now on. */
	struct rdma_event_channel *channel = rdma_create_event_channel();
	EQUAL(rdma_migrate_id(id, channel), 0);
	CHECK(id->channel == channel && !id->event);
	rdma_destroy_qp(id);
	EQUAL(rdma_destroy_id(id), 0);
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&nowhere, 200), -1);
	CHECK(errno > 0 && errno < 200);
	EQUAL(rdma_destroy_id(id), 0);
}

static void names_to_addresses(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST }, *res;
	EQUAL(rdma_getaddrinfo(NULL, NULL, NULL, &res), -1);
	EQUAL(errno, EINVAL);
	EQUAL(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &res), 0);
	CHECK(res->ai_dst_addr && !res->ai_src_addr && !res->ai_src_len);
	EQUAL(res->ai_dst_len, sizeof(struct sockaddr_in));
	EQUAL(((struct sockaddr_in *)res->ai_dst_addr)->sin_port, htons(7471));
	EQUAL(res->ai_family, AF_INET);
	EQUAL(res->ai_qp_type, IBV_QPT_RC);
	EQUAL(res->ai_port_space, RDMA_PS_TCP);
	rdma_freeaddrinfo(res);
	EQUAL(rdma_getaddrinfo("no address", NULL, &hints, &res), EAI_NONAME);
	hints.ai_flags = 1 << 20;
	EQUAL(rdma_getaddrinfo("127.0.0.1", NULL, &hints, &res), EAI_BADFLAGS);
	hints = (struct rdma_addrinfo){ .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_UD };
	EQUAL(rdma_getaddrinfo("127.0.0.1", NULL, &hints, &res), EAI_SOCKTYPE);
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_UDP };
	EQUAL(rdma_getaddrinfo(NULL, "7471", &hints, &res), 0);
	CHECK(res->ai_src_addr && !res->ai_dst_addr && !res->ai_dst_len);
	EQUAL(res->ai_flags, RAI_PASSIVE);
	EQUAL(res->ai_qp_type, IBV_QPT_UD);
	rdma_freeaddrinfo(res);
	/* The result has memory of its own. */
	struct sockaddr_in *src = malloc(sizeof *src);
	*src = v4(INADDR_LOOPBACK, 9);
	hints = (struct rdma_addrinfo){ .ai_src_addr = (struct sockaddr *)src, .ai_src_len = sizeof *src };
	EQUAL(rdma_getaddrinfo("127.0.0.1", "1", &hints, &res), 0);
	CHECK(res->ai_src_addr != hints.ai_src_addr);
	free(src);
	EQUAL(((struct sockaddr_in *)res->ai_src_addr)->sin_port, htons(9));
	rdma_freeaddrinfo(res);
	rdma_freeaddrinfo(NULL);
}

static void names_of_events(void)
{
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_ADDR_RESOLVED), "RDMA_CM_EVENT_ADDR_RESOLVED"));
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT"));
	CHECK(!strcmp(rdma_event_str(99), "UNKNOWN EVENT"));
}

static void *serve(void *listening)
{
	struct rdma_cm_id *id;
	static char in[16];
	struct ibv_wc wc;
	EQUAL(rdma_get_request(listening, &id), 0);
	CHECK(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	struct ibv_mr *mr = rdma_reg_msgs(id, in, sizeof in);
	EQUAL(rdma_post_recv(id, NULL, in, sizeof in, mr), 0);
	EQUAL(rdma_accept(id, NULL), 0);
	EQUAL(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	EQUAL(rdma_get_recv_comp(id, &wc), 1);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	CHECK(!strcmp(in, "hi"));
	EQUAL(rdma_disconnect(id), 0);
	EQUAL(rdma_dereg_mr(mr), 0);
	rdma_destroy_ep(id);
	return NULL;
}

static void endpoints(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *res;
	struct ibv_qp_init_attr init = { .cap = { 2, 2, 1, 1, 16 }, .sq_sig_all = 1 };
	struct rdma_cm_id *listening, *id;
	char port[8];
	EQUAL(rdma_getaddrinfo("127.0.0.1", "0", &hints, &res), 0);
	EQUAL(rdma_create_ep(&listening, res, NULL, &init), 0);
	rdma_freeaddrinfo(res);
	EQUAL(rdma_listen(listening, 1), 0);
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listening)));
	pthread_t server;
	EQUAL(pthread_create(&server, NULL, serve, listening), 0);
	hints.ai_flags = 0;
	EQUAL(rdma_getaddrinfo("127.0.0.1", port, &hints, &res), 0);
	EQUAL(rdma_create_ep(&id, res, NULL, &init), 0);
	rdma_freeaddrinfo(res);
	EQUAL(rdma_connect(id, NULL), 0);
	EQUAL(rdma_post_send(id, NULL, "hi", 3, NULL, IBV_SEND_INLINE), 0);
	struct ibv_wc wc;
	EQUAL(rdma_get_send_comp(id, &wc), 1);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	EQUAL(rdma_disconnect(id), 0);
	EQUAL(pthread_join(server, NULL), 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listening);
}

/* Of librdmacm after version 44: there, and refused. */
static void newer_names(void)
{
	struct rdma_cm_id *id;
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	struct rdma_addrinfo *info = NULL;
	int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **) = dlvsym(RTLD_DEFAULT, "rdma_query_addrinfo", "RDMACM_1.4");
	int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *) =
		dlvsym(RTLD_DEFAULT, "rdma_resolve_addrinfo", "RDMACM_1.4");
	int (*write_event)(struct rdma_cm_id *, int, int, uint64_t) = dlvsym(RTLD_DEFAULT, "rdma_write_cm_event", "RDMACM_1.4");
	int (*create)(int) = dlvsym(RTLD_DEFAULT, "repoll_create", "RDMACM_1.5");
	int (*control)(int, int, int, void *) = dlvsym(RTLD_DEFAULT, "repoll_ctl", "RDMACM_1.5");
	int (*wait)(int, void *, int, int) = dlvsym(RTLD_DEFAULT, "repoll_wait", "RDMACM_1.5");
	CHECK(query && resolve && write_event && create && control && wait);
	errno = 0;
	CHECK(query(id, &info) == -1 && errno == EOPNOTSUPP && !info);
	errno = 0;
	CHECK(resolve(id, "127.0.0.1", "1", NULL) == -1 && errno == EOPNOTSUPP);
	errno = 0;
	CHECK(write_event(id, 16, 0, 7) == -1 && errno == EOPNOTSUPP);
	errno = 0;
	CHECK(create(0) == -1 && errno == ENOSYS);
	errno = 0;
	CHECK(control(0, 0, 0, NULL) == -1 && errno == ENOSYS);
	errno = 0;
	CHECK(wait(0, NULL, 1, 0) == -1 && errno == ENOSYS);
	EQUAL(rdma_destroy_id(id), 0);
}

static const struct test tests[] = {
	TEST(no_device),
	TEST(devices_are_shared_with_ids),
	TEST(channels_are_descriptors),
	TEST(ports),
	TEST(options),
	TEST(link_local_without_scope),
	TEST(synchronous_ids),
	TEST(names_to_addresses),
	TEST(names_of_events),
	TEST(endpoints),
	TEST(newer_names),
};
MAIN(tests)
