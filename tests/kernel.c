/* What libibverbs, librdmacm and libibumad do with devices of the kernel besides moving data: run by tests/interop.sh.
 *
 *   kernel umad DEVICE              sends datagrams from the port to itself, by two agents
 *   kernel reach DEVICE GID ERRNO   what ibv_gid_reachable says
 *   kernel denied                   to a user to whom the kernel's files are closed
 *   kernel fatal DEVICE             when a device is removed that is open: says `ready`, then `gone` when it has let it go
 *   kernel unload DEVICE            when the device's module is: says `ready`, `gone`, and when there is one again, ends
 *
 * Exit status 0 when all was as it should be.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/umad.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what)                                                                                                        \
	do {                                                                                                               \
		if (!(what)) {                                                                                             \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));                             \
			exit(1);                                                                                           \
		}                                                                                                          \
	} while (0)

enum { VENDOR = 0x0a, UNUSED = 0x0b, GET = 1, RESPONSE = 0x81, MAD = 256 };

static struct ibv_context *opened(const char *name)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = NULL;
	CHECK(list);
	for (int i = 0; i < count; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			context = ibv_open_device(list[i]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

/* The first GID of RoCE v2 that is an IPv6 address and not of the link: the kernel matches no answers by IPv4. */
static int address_of(const char *name, union ibv_gid *gid)
{
	struct ibv_context *context = opened(name);
	int found = -1;
	for (int i = 0; found < 0 && i < 64; i++) {
		struct ibv_gid_entry entry;
		if (ibv_query_gid_ex(context, 1, i, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 &&
		    entry.gid.raw[0] == 0xfd) {
			*gid = entry.gid;
			found = i;
		}
	}
	CHECK(found >= 0);
	CHECK(ibv_close_device(context) == 0);
	return found;
}

static void *message(int class, int method, const union ibv_gid *gid, int gid_index)
{
	struct ib_user_mad *umad = calloc(1, umad_size() + MAD);
	uint8_t *mad = umad_get_mad(umad);
	CHECK(umad);
	mad[0] = 1;
	mad[1] = class;
	mad[2] = 1;
	mad[3] = method;
	for (int i = 64; i < MAD; i++)
		mad[i] = i;
	umad_set_addr(umad, 0, 1, 0, 0x80010000);
	struct ib_mad_addr grh = { .grh_present = 1, .gid_index = gid_index, .hop_limit = 64 };
	memcpy(grh.gid, gid->raw, 16);
	umad_set_grh(umad, &grh);
	umad->addr.gid_index = gid_index;
	return umad;
}

static void datagrams(const char *name)
{
	char names[32][UMAD_CA_NAME_LEN];
	int count = umad_get_cas_names(names, 32), known = 0;
	umad_ca_t ca;
	umad_port_t port;
	union ibv_gid gid;
	int index = address_of(name, &gid);
	for (int i = 0; i < count; i++)
		known += strcmp(names[i], name) == 0;
	CHECK(known == 1);
	CHECK(umad_get_ca(name, &ca) == 0);
	CHECK(ca.numports == 1 && ca.node_type == 1 && ca.node_guid != 0 && ca.ports[1]);
	CHECK(strcmp(ca.ports[1]->link_layer, "Ethernet") == 0 && ca.ports[1]->state == 4);
	CHECK(ca.ports[1]->pkeys_size >= 1 && ca.ports[1]->pkeys[0] == 0xffff);
	CHECK(umad_release_ca(&ca) == 0);
	CHECK(umad_get_port(name, 1, &port) == 0);
	CHECK(port.portnum == 1 && strcmp(port.ca_name, name) == 0);
	CHECK(umad_release_port(&port) == 0);
	CHECK(umad_get_port(name, 2, &port) < 0);

	int asks = umad_open_port(name, 1), answers = umad_open_port(name, 1);
	CHECK(asks >= 0 && answers >= 0);
	unsigned long methods[128 / (8 * sizeof(long))] = { 1 << GET };
	int asker = umad_register(asks, VENDOR, 1, 0, NULL), answerer = umad_register(answers, VENDOR, 1, 0, (void *)methods);
	int lonely = umad_register(asks, UNUSED, 1, 0, NULL);
	CHECK(asker >= 0 && answerer >= 0 && lonely >= 0);
	CHECK(umad_register(asks, VENDOR, 1, 0, (void *)methods) == -EPERM);

	struct ib_user_mad *request = message(VENDOR, GET, &gid, index), *seen = calloc(1, umad_size() + MAD);
	int len = MAD;
	CHECK(umad_recv(answers, seen, &len, 0) == -EWOULDBLOCK);
	CHECK(umad_send(asks, asker, request, MAD, 2000, 3) == 0);
	len = MAD;
	CHECK(umad_recv(answers, seen, &len, 10000) == answerer);
	CHECK(len == MAD && umad_status(seen) == 0);
	uint8_t *mad = umad_get_mad(seen);
	CHECK(mad[1] == VENDOR && mad[3] == GET && memcmp(mad + 64, (uint8_t *)umad_get_mad(request) + 64, MAD - 64) == 0);
	mad[3] = RESPONSE;
	mad[64] = 77;
	struct ib_user_mad *response = message(VENDOR, RESPONSE, &gid, index);
	memcpy(umad_get_mad(response), mad, MAD);
	CHECK(umad_send(answers, answerer, response, MAD, 0, 0) == 0);
	len = MAD;
	CHECK(umad_recv(asks, seen, &len, 10000) == asker);
	mad = umad_get_mad(seen);
	CHECK(umad_status(seen) == 0 && mad[3] == RESPONSE && mad[64] == 77);
	/* Nobody has this class, and the kernel says so: "unsupported method or attribute". */
	struct ib_user_mad *lost = message(UNUSED, GET, &gid, index);
	CHECK(umad_send(asks, lonely, lost, MAD, 100, 1) == 0);
	len = MAD;
	CHECK(umad_recv(asks, seen, &len, 10000) == lonely);
	mad = umad_get_mad(seen);
	CHECK(umad_status(seen) == 0 && mad[3] == RESPONSE && mad[5] == 0x0c);
	CHECK(umad_unregister(asks, lonely) == 0);
	CHECK(umad_send(asks, lonely, lost, MAD, 100, 1) < 0);
	CHECK(umad_close_port(asks) == 0 && umad_close_port(answers) == 0);
	CHECK(umad_poll(asks, 0) == -EBADF);
	CHECK(umad_open_port(name, 2) == -EINVAL);
}

static void reach(const char *name, const char *gid, int wanted)
{
	struct ibv_context *context = opened(name);
	int (*gid_reachable)(struct ibv_context *, unsigned, union ibv_gid *, int) = dlsym(RTLD_DEFAULT, "ibv_gid_reachable");
	int (*register_events)(struct ibv_context *, uint32_t, int, union ibv_gid *) =
		dlsym(RTLD_DEFAULT, "ibv_register_sm_events");
	union ibv_gid asked;
	CHECK(gid_reachable && register_events);
	CHECK(inet_pton(AF_INET6, gid, asked.raw) == 1);
	errno = 0;
	int found = gid_reachable(context, 1, &asked, 3000) == 0 ? 0 : errno;
	printf("%s from %s: %s\n", gid, name, strerror(found));
	CHECK(found == wanted);
	CHECK(gid_reachable(context, 9, &asked, 100) == -1 && errno == EINVAL);
	CHECK(register_events(context, 1, 0, NULL) == -1 && errno == ENOSYS);
	CHECK(ibv_close_device(context) == 0);
}

/* IRONVERBS_SOFT=off: nothing but devices of the kernel. */
static void denied(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count > 0);
	CHECK(ibv_open_device(list[0]) == NULL && errno == EPERM);
	CHECK(rdma_create_event_channel() == NULL && errno == EPERM);
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == -1 && errno == EPERM);
	CHECK(umad_open_port(ibv_get_device_name(list[0]), 1) == -EPERM);
	ibv_free_device_list(list);
}

/* Waits for DEVICE_FATAL, which comes once; what there is of other events may come before it. */
static void wait_for_fatal(struct ibv_context *context)
{
	struct ibv_async_event event;
	do {
		struct pollfd fd = { context->async_fd, POLLIN, 0 };
		CHECK(poll(&fd, 1, 60000) == 1);
		CHECK(ibv_get_async_event(context, &event) == 0);
		printf("%s\n", ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	CHECK(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
}

static void fatal(const char *name)
{
	struct ibv_context *contexts[2] = { opened(name), opened(name) }, *context = contexts[0];
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	static char buffer[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_port_attr port;
	struct ibv_async_event event;
	CHECK(channel && cq && pd && mr && qp);
	CHECK(fcntl(contexts[1]->async_fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_async_event(contexts[1], &event) == -1 && errno == EAGAIN);
	printf("ready\n");
	wait_for_fatal(context);
	wait_for_fatal(contexts[1]);
	/* All of it is still there, whatever it says. */
	struct ibv_wc wc;
	struct ibv_sge sge = { (uintptr_t)buffer, sizeof buffer, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(ibv_post_send(qp, &wr, &bad) != 0);
	printf("port: %s\n", strerror(ibv_query_port(context, 1, &port)));
	CHECK(strcmp(ibv_get_device_name(context->device), name) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(contexts[0]) == 0 && ibv_close_device(contexts[1]) == 0);
	printf("gone\n");
}

static struct ibv_device *device;

/* Looks for the device for a while, until it is there, or not there any more: the list. */
static struct ibv_device **listed(const char *name, int wanted)
{
	for (int i = 0; i < 300; i++) {
		struct ibv_device **list = ibv_get_device_list(NULL);
		int found = 0;
		CHECK(list);
		for (int at = 0; list[at]; at++)
			if (strcmp(ibv_get_device_name(list[at]), name) == 0) {
				device = list[at];
				found = 1;
			}
		if (found == wanted)
			return list;
		ibv_free_device_list(list);
		usleep(100000);
	}
	printf("%s is %s\n", name, wanted ? "not there" : "still there");
	exit(1);
}

/* A context of the device keeps its module; what is not of one device does not. */
static void unload(const char *name)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	struct ibv_device **before = listed(name, 1);
	struct sockaddr_in all = { .sin_family = AF_INET, .sin_port = htons(7495) };
	CHECK(channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&all) == 0 && rdma_listen(listener, 1) == 0);
	struct ibv_context *context = ibv_open_device(device);
	CHECK(context);
	printf("ready\n");
	/* Until whoever runs this has seen that the module stays. */
	CHECK(getchar() == 'c');
	CHECK(ibv_close_device(context) == 0);
	int port = umad_open_port(name, 1), len = MAD;
	CHECK(port >= 0 && umad_register(port, VENDOR, 1, 0, NULL) >= 0);
	printf("closed\n");
	struct ibv_device **after = listed(name, 0);
	struct ib_user_mad *seen = calloc(1, umad_size() + MAD);
	CHECK(seen && umad_recv(port, seen, &len, 1000) < 0);
	printf("umad: %s\n", strerror(errno));
	CHECK(umad_close_port(port) == 0);
	CHECK(ibv_open_device(device) == NULL && errno == ENODEV);
	CHECK(strcmp(ibv_get_device_name(device), name) == 0);
	ibv_free_device_list(before);
	ibv_free_device_list(after);
	CHECK(umad_open_port(name, 1) < 0);
	printf("gone\n");
	before = listed(name, 1);
	context = ibv_open_device(device);
	CHECK(context && ibv_close_device(context) == 0);
	ibv_free_device_list(before);
	CHECK(ntohs(rdma_get_src_port(listener)) == 7495);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
	free(seen);
	printf("there again\n");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 3 && strcmp(argv[1], "umad") == 0)
		datagrams(argv[2]);
	else if (argc == 5 && strcmp(argv[1], "reach") == 0)
		reach(argv[2], argv[3], atoi(argv[4]));
	else if (argc == 2 && strcmp(argv[1], "denied") == 0)
		denied();
	else if (argc == 3 && strcmp(argv[1], "fatal") == 0)
		fatal(argv[2]);
	else if (argc == 3 && strcmp(argv[1], "unload") == 0)
		unload(argv[2]);
	else
		return 64;
	return 0;
}
