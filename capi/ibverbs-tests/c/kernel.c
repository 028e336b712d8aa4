/*
 * Devices of the kernel, on a machine that has none: a tree of files stands for /sys, and /dev/null for a device's file,
 * which takes every command by write(2) and answers with zeros. The driver is this program.
 */
#include "harness.h"
#include <dlfcn.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* What drivers share with the library, as far as it is used here (version 34). */
struct match { void *data; const char *pattern; uint16_t vendor, device; uint8_t kind; };

struct device_ops {
	const char *name;
	uint32_t min_abi, max_abi;
	const struct match *table;
	void *providers, *match_device, *alloc_context, *import_context, *alloc_device, *uninit_device;
};

struct driver_device { struct ibv_device device; void *rest[6]; };

struct command { uint64_t bytes[32]; };

/* Places in the table of a driver's functions, which are in alphabetical order. */
enum { ALLOC_PD = 5, CQ_EVENT = 12, CREATE_CQ = 15, CREATE_QP = 19, CREATE_SRQ = 22, DEALLOC_PD = 26, DEREG_MR = 28,
       DESTROY_CQ = 31, DESTROY_QP = 34, DESTROY_SRQ = 36, FREE_CONTEXT = 39, MODIFY_QP = 47, POLL_CQ = 53, QUERY_DEVICE_EX = 58,
       QUERY_PORT = 60, QUERY_QP = 61, QUERY_SRQ = 64, REG_MR = 68, SLOTS = 76 };

struct ops { void *slot[SLOTS]; };

void verbs_register_driver_34(const struct device_ops *ops);
void *_verbs_init_and_alloc_context(struct ibv_device *, int fd, size_t size, void *offset, uint32_t driver);
void verbs_set_ops(struct verbs_context *, const struct ops *);
void verbs_uninit_context(struct verbs_context *);
int ibv_cmd_alloc_pd(struct ibv_context *, struct ibv_pd *, void *, size_t, void *, size_t);
int ibv_cmd_dealloc_pd(struct ibv_pd *);
int ibv_cmd_create_cq(struct ibv_context *, int, struct ibv_comp_channel *, int, struct ibv_cq *, void *, size_t, void *, size_t);
int ibv_cmd_destroy_cq(struct ibv_cq *);
int ibv_cmd_create_qp(struct ibv_pd *, struct ibv_qp *, struct ibv_qp_init_attr *, void *, size_t, void *, size_t);
int ibv_cmd_modify_qp(struct ibv_qp *, struct ibv_qp_attr *, int, void *, size_t);
int ibv_cmd_query_qp(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *, void *, size_t);
int ibv_cmd_destroy_qp(struct ibv_qp *);
int ibv_cmd_create_srq(struct ibv_pd *, struct ibv_srq *, struct ibv_srq_init_attr *, void *, size_t, void *, size_t);
int ibv_cmd_destroy_srq(struct ibv_srq *);
int ibv_cmd_reg_mr(struct ibv_pd *, void *, size_t, uint64_t, int, void *, void *, size_t, void *, size_t);
int ibv_cmd_dereg_mr(void *);
int ibv_cmd_query_device_any(struct ibv_context *, const void *, struct ibv_device_attr_ex *, size_t, void *, size_t *);
int ibv_cmd_query_port(struct ibv_context *, uint8_t, struct ibv_port_attr *, void *, size_t);
int ibv_read_ibdev_sysfs_file(char *, size_t, void *, const char *, ...);

static char root[] = "/tmp/ironverbs-sys-XXXXXX";

static void put(const char *path, const char *text)
{
	char whole[512];
	snprintf(whole, sizeof whole, "%s/%s", root, path);
	for (char *at = strchr(whole + 1, '/'); at; at = strchr(at + 1, '/')) {
		*at = 0;
		mkdir(whole, 0700);
		*at = '/';
	}
	FILE *file = fopen(whole, "w");
	CHECK(file);
	fputs(text, file);
	fclose(file);
}

static void sweep(void)
{
	char command[128];
	snprintf(command, sizeof command, "rm -rf %s", root);
	CHECK(!system(command));
}

/* A tree with one device, whose file has the number of /dev/null. */
static void tree(const char *name)
{
	char path[256];
	CHECK(mkdtemp(root));
	atexit(sweep);
	put("class/infiniband_verbs/abi_version", "6\n");
	snprintf(path, sizeof path, "%s\n", name);
	put("class/infiniband_verbs/uverbs77/ibdev", path);
	put("class/infiniband_verbs/uverbs77/dev", "1:3\n");
	put("class/infiniband_verbs/uverbs77/abi_version", "1\n");
	snprintf(path, sizeof path, "class/infiniband/%s/node_type", name);
	put(path, "1: CA\n");
	snprintf(path, sizeof path, "class/infiniband/%s/node_guid", name);
	put(path, "0011:2233:4455:6677\n");
	snprintf(path, sizeof path, "class/infiniband/%s/ports/1/pkeys/0", name);
	put(path, "0xffff\n");
	snprintf(path, sizeof path, "class/infiniband/%s/ports/1/gids/0", name);
	put(path, "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
	snprintf(path, sizeof path, "class/infiniband/%s/ports/1/gid_attrs/types/0", name);
	put(path, "RoCE v2\n");
	setenv("SYSFS_PATH", root, 1);
}

static void devices_of_the_kernel_come_first(void)
{
	int n;
	tree("rxe7");
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n >= 2);
	CHECK(!strcmp(ibv_get_device_name(list[0]), "rxe7"));
	EQUAL(be64toh(ibv_get_device_guid(list[0])), 0x0011223344556677);
	EQUAL(ibv_get_device_index(list[0]), -1);
	EQUAL(list[0]->node_type, IBV_NODE_CA);
	EQUAL(list[0]->transport_type, IBV_TRANSPORT_IB);
	CHECK(!strcmp(list[0]->dev_name, "uverbs77"));
	CHECK(strstr(list[0]->ibdev_path, "/class/infiniband/rxe7"));
	CHECK(!strncmp(ibv_get_device_name(list[1]), "iron", 4));
	struct ibv_device *first = list[0];
	ibv_free_device_list(list);
	list = ibv_get_device_list(NULL);
	CHECK(list[0] == first);
	ibv_free_device_list(list);
	/* One that comes and goes. */
	char path[256];
	snprintf(path, sizeof path, "%s/class/infiniband_verbs/uverbs77/ibdev", root);
	unlink(path);
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0] != first);
	ibv_free_device_list(list);
	CHECK(!strcmp(ibv_get_device_name(first), "rxe7"));
}

static void without_a_driver_or_a_file(void)
{
	tree("nobody0");
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && !strcmp(ibv_get_device_name(list[0]), "nobody0"));
	errno = 0;
	CHECK(!ibv_open_device(list[0]));
	EQUAL(errno, ENOSYS);
	ibv_free_device_list(list);
	/* Its name is rxe's, whose plug-in is installed, and its file is not there. */
	put("class/infiniband_verbs/uverbs77/ibdev", "rxe7\n");
	list = ibv_get_device_list(NULL);
	CHECK(list && !strcmp(ibv_get_device_name(list[0]), "rxe7"));
	errno = 0;
	CHECK(!ibv_open_device(list[0]));
	EQUAL(errno, ENODEV);
	ibv_free_device_list(list);
}

static void soft_chooses(void)
{
	int n;
	tree("rxe7");
	pid_t child = fork();
	if (!child) {
		setenv("IRONVERBS_SOFT", "only", 1);
		struct ibv_device **list = ibv_get_device_list(&n);
		CHECK(n >= 1 && strcmp(ibv_get_device_name(list[0]), "rxe7"));
		_exit(0);
	}
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	setenv("IRONVERBS_SOFT", "off", 1);
	struct ibv_device **list = ibv_get_device_list(&n);
	EQUAL(n, 1);
	CHECK(!strcmp(ibv_get_device_name(list[0]), "rxe7"));
}

/* The driver. */
static int events = -1, hooks, closed;

static struct driver_device *fake_device(void *sysfs)
{
	char text[64];
	EQUAL(ibv_read_ibdev_sysfs_file(text, sizeof text, sysfs, "ports/%d/pkeys/%d", 1, 0), 6);
	CHECK(!strcmp(text, "0xffff"));
	return calloc(1, sizeof(struct driver_device));
}

static struct ibv_pd *fake_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);
	struct command command, response;
	EQUAL(ibv_cmd_alloc_pd(context, pd, &command, 16, &response, 4), 0);
	return pd;
}

static int fake_dealloc_pd(struct ibv_pd *pd)
{
	int errnum = ibv_cmd_dealloc_pd(pd);
	free(pd);
	return errnum;
}

static struct ibv_cq *fake_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq = calloc(1, sizeof *cq);
	struct command command, response;
	EQUAL(ibv_cmd_create_cq(context, cqe, channel, vector, cq, &command, 40, &response, 8), 0);
	return cq;
}

static int fake_destroy_cq(struct ibv_cq *cq)
{
	return ibv_cmd_destroy_cq(cq);
}

static int fake_poll_cq(struct ibv_cq *cq, int max, struct ibv_wc *wc)
{
	(void)cq, (void)wc;
	return max + 40;
}

static struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp = calloc(1, 512);
	struct command command, response;
	EQUAL(ibv_cmd_create_qp(pd, qp, attr, &command, 64, &response, 32), 0);
	return qp;
}

static int fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct command command;
	return ibv_cmd_modify_qp(qp, attr, mask, &command, 120);
}

static int fake_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct command command;
	return ibv_cmd_query_qp(qp, attr, mask, init, &command, 24);
}

static struct ibv_srq *fake_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq *srq = calloc(1, sizeof *srq);
	struct command command, response;
	EQUAL(ibv_cmd_create_srq(pd, srq, attr, &command, 40, &response, 16), 0);
	return srq;
}

static struct ibv_mr *fake_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	struct ibv_mr *mr = calloc(1, 64);
	struct command command, response;
	EQUAL(ibv_cmd_reg_mr(pd, addr, length, iova, access, mr, &command, 48, &response, 12), 0);
	return mr;
}

static int fake_query_device(struct ibv_context *context, const void *input, struct ibv_device_attr_ex *attr, size_t size)
{
	return ibv_cmd_query_device_any(context, input, attr, size, NULL, NULL);
}

static int fake_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	struct command command;
	return ibv_cmd_query_port(context, port, attr, &command, 24);
}

static void fake_cq_event(struct ibv_cq *cq)
{
	CHECK(cq);
	hooks++;
}

static void fake_free(struct ibv_context *context)
{
	struct verbs_context *whole = verbs_get_ctx(context);
	verbs_uninit_context(whole);
	free(whole);
	closed++;
}

static struct verbs_context *fake_context(struct ibv_device *device, int fd)
{
	struct verbs_context *context = _verbs_init_and_alloc_context(device, fd, sizeof *context, NULL, 0);
	CHECK(context);
	static const struct ops functions = { .slot = {
		[ALLOC_PD] = fake_alloc_pd, [DEALLOC_PD] = fake_dealloc_pd, [CREATE_CQ] = fake_create_cq,
		[DESTROY_CQ] = fake_destroy_cq, [POLL_CQ] = fake_poll_cq, [CREATE_QP] = fake_create_qp,
		[MODIFY_QP] = fake_modify_qp, [QUERY_QP] = fake_query_qp, [DESTROY_QP] = ibv_cmd_destroy_qp,
		[CREATE_SRQ] = fake_create_srq, [DESTROY_SRQ] = ibv_cmd_destroy_srq, [REG_MR] = fake_reg_mr,
		[DEREG_MR] = ibv_cmd_dereg_mr, [QUERY_DEVICE_EX] = fake_query_device, [QUERY_PORT] = fake_query_port,
		[FREE_CONTEXT] = fake_free, [CQ_EVENT] = fake_cq_event,
	} };
	verbs_set_ops(context, &functions);
	int pipes[2];
	CHECK(!pipe(pipes));
	context->context.async_fd = pipes[0];
	events = pipes[1];
	return context;
}

static const struct match table[] = { { NULL, "rdma_device:*Nfake*", 0, 0, 2 }, { 0 } };
static struct device_ops driver = {
	.name = "fake", .max_abi = 1, .table = table, .alloc_device = fake_device, .import_context = fake_context,
};

static struct ibv_context *open_fake(void)
{
	tree("fake0");
	verbs_register_driver_34(&driver);
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && !strcmp(ibv_get_device_name(list[0]), "fake0"));
	ibv_free_device_list(list);
	int fd = open("/dev/null", O_RDWR);
	CHECK(fd >= 0);
	struct ibv_context *context = ibv_import_device(fd);
	CHECK(context);
	return context;
}

static void a_driver_is_called(void)
{
	struct ibv_context *context = open_fake();
	struct ibv_device_attr device;
	EQUAL(ibv_query_device(context, &device), 0);
	struct ibv_port_attr port;
	EQUAL(ibv_query_port(context, 1, &port), 0);
	union ibv_gid gid;
	EQUAL(ibv_query_gid(context, 1, 0, &gid), 0);
	EQUAL(gid.raw[12], 10);
	struct ibv_gid_entry entry;
	EQUAL(ibv_query_gid_ex(context, 1, 0, &entry, 0), 0);
	EQUAL(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
	EQUAL(ibv_query_gid(context, 1, 1, &gid), -1);
	__be16 pkey;
	EQUAL(ibv_query_pkey(context, 1, 0, &pkey), 0);
	EQUAL(ibv_get_pkey_index(context, 1, pkey), 0);
	EQUAL(ibv_query_pkey(context, 1, 1, &pkey), -1);

	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd && pd->context == context);
	char memory[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && mr->addr == memory && mr->length == sizeof memory && mr->pd == pd);
	struct ibv_cq *cq = ibv_create_cq(context, 10, &pkey, NULL, 0);
	CHECK(cq && cq->context == context && cq->cq_context == &pkey);
	struct ibv_wc wc;
	EQUAL(ibv_poll_cq(cq, 2, &wc), 42);
	struct ibv_srq_init_attr srq_init = { .srq_context = &gid, .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	CHECK(srq && srq->srq_context == &gid && srq->pd == pd);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp && qp->context == context && qp->send_cq == cq && qp->srq == srq && qp->state == IBV_QPS_RESET);
	CHECK(!ibv_qp_to_qp_ex(qp));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	EQUAL(qp->state, IBV_QPS_INIT);
	EQUAL(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	CHECK(init.send_cq == cq);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_srq(srq), 0);
	EQUAL(ibv_destroy_cq(cq), 0);
	EQUAL(ibv_dereg_mr(mr), 0);
	EQUAL(ibv_dealloc_pd(pd), 0);
	EQUAL(ibv_close_device(context), 0);
	EQUAL(closed, 1);
}

static void a_driver_gets_what_it_lacks(void)
{
	struct ibv_context *context = open_fake();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	errno = 0;
	CHECK(!ibv_alloc_td(context, NULL));
	EQUAL(errno, EOPNOTSUPP);
	CHECK(!ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	CHECK(!ibv_import_pd(context, 1));
	struct ibv_qp qp = { .context = context };
	union ibv_gid gid = { { 0 } };
	EQUAL(ibv_attach_mcast(&qp, &gid, 0), EOPNOTSUPP);
	struct ibv_ece ece = { .vendor_id = 1 };
	EQUAL(ibv_set_ece(&qp, &ece), EOPNOTSUPP);
	EQUAL(ibv_query_qp_data_in_order(&qp, IBV_WR_SEND, 0), 0);
	/* Commands and responses that are shorter than their fixed part. */
	struct command command, response;
	EQUAL(ibv_cmd_alloc_pd(context, pd, &command, 15, &response, 4), EINVAL);
	EQUAL(ibv_cmd_alloc_pd(context, pd, &command, 16, &response, 3), EINVAL);
	/* A context that no driver made. */
	struct ibv_context *ours = NULL;
	struct ibv_device **list = ibv_get_device_list(NULL);
	for (int i = 0; list[i] && !ours; i++)
		if (!strncmp(ibv_get_device_name(list[i]), "iron", 4))
			ours = ibv_open_device(list[i]);
	CHECK(ours);
	EQUAL(ibv_cmd_alloc_pd(ours, pd, &command, 16, &response, 4), EINVAL);
}

static void *acknowledge(void *cq)
{
	struct timespec nap = { .tv_nsec = 50 * 1000 * 1000 };
	nanosleep(&nap, NULL);
	struct ibv_async_event event = { .element.cq = cq, .event_type = IBV_EVENT_CQ_ERR };
	ibv_ack_async_event(&event);
	return NULL;
}

static void events_of_a_driver(void)
{
	struct ibv_context *context = open_fake();
	struct ibv_cq *cq = ibv_create_cq(context, 10, &hooks, NULL, 0);
	struct { uint64_t element; uint32_t type, reserved; } record = { (uintptr_t)cq, IBV_EVENT_CQ_ERR, 0 };
	EQUAL(write(events, &record, sizeof record), sizeof record);
	struct ibv_async_event event;
	EQUAL(ibv_get_async_event(context, &event), 0);
	EQUAL(event.event_type, IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == cq);
	EQUAL(cq->async_events_completed, 0);
	ibv_ack_async_event(&event);
	EQUAL(cq->async_events_completed, 1);
	record.element = 3;
	record.type = IBV_EVENT_PORT_ERR;
	EQUAL(write(events, &record, sizeof record), sizeof record);
	EQUAL(ibv_get_async_event(context, &event), 0);
	EQUAL(event.element.port_num, 3);
	ibv_ack_async_event(&event);

	/* Completion events come by the channel's descriptor. */
	int pipes[2];
	CHECK(!pipe(pipes));
	struct ibv_comp_channel channel = { .context = context, .fd = pipes[0] };
	uint64_t name = (uintptr_t)cq;
	EQUAL(write(pipes[1], &name, sizeof name), sizeof name);
	struct ibv_cq *which;
	void *user;
	EQUAL(ibv_get_cq_event(&channel, &which, &user), 0);
	CHECK(which == cq && user == &hooks && hooks == 1);
	ibv_ack_cq_events(cq, 1);
	EQUAL(cq->comp_events_completed, 1);
	/* Part of a record, and a queue that is not there. */
	EQUAL(write(pipes[1], &name, 4), 4);
	EQUAL(ibv_get_cq_event(&channel, &which, &user), -1);
	name = 0;
	EQUAL(write(pipes[1], &name, sizeof name), sizeof name);
	EQUAL(ibv_get_cq_event(&channel, &which, &user), -1);

	/* Nothing was reported by the kernel, so that destruction waits until the counts are back at zero. */
	cq->comp_events_completed = 0;
	cq->async_events_completed = UINT32_MAX;
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, acknowledge, cq), 0);
	EQUAL(ibv_destroy_cq(cq), 0);
	pthread_join(thread, NULL);
}

static void both_worlds(void)
{
	struct ibv_context *context = open_fake();
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(!strncmp(ibv_get_device_name(list[1]), "iron", 4));
	struct ibv_context *ours = ibv_open_device(list[1]);
	CHECK(ours);
	struct ibv_pd *a = ibv_alloc_pd(context), *b = ibv_alloc_pd(ours);
	struct ibv_cq *queue = ibv_create_cq(ours, 10, NULL, NULL, 0), *theirs = ibv_create_cq(context, 10, NULL, NULL, 0);
	struct ibv_wc wc;
	CHECK(a && b && queue && theirs);
	EQUAL(ibv_poll_cq(queue, 1, &wc), 0);
	EQUAL(ibv_poll_cq(theirs, 1, &wc), 41);
	/* Objects of one world in calls of the other. */
	struct ibv_qp_init_attr init = { .send_cq = theirs, .recv_cq = theirs, .qp_type = IBV_QPT_RC,
		.cap = { 1, 1, 1, 1, 0 } };
	CHECK(!ibv_create_qp(b, &init));
	EQUAL(ibv_close_device(context), 0);
	EQUAL(ibv_destroy_cq(queue), 0);
	EQUAL(ibv_dealloc_pd(b), 0);
	EQUAL(ibv_close_device(ours), 0);
}

static bool asked;

static bool never(void *sysfs)
{
	CHECK(sysfs);
	asked = true;
	return false;
}

static void wrong_drivers(void)
{
	tree("fake0");
	/* One whose versions of the kernel's interface are others, one that declines, and one that can do nothing. */
	static struct device_ops old = { .name = "old", .min_abi = 2, .max_abi = 3, .table = table, .alloc_device = fake_device };
	static struct device_ops shy = { .name = "shy", .max_abi = 1, .table = table, .match_device = never };
	static struct device_ops empty = { .max_abi = 1, .table = table };
	verbs_register_driver_34(NULL);
	verbs_register_driver_34(&old);
	verbs_register_driver_34(&shy);
	verbs_register_driver_34(&empty);
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && asked && !strcmp(ibv_get_device_name(list[0]), "fake0"));
	errno = 0;
	CHECK(!ibv_open_device(list[0]));
	EQUAL(errno, ENOSYS);
	/* A context that would not fit. */
	errno = 0;
	CHECK(!_verbs_init_and_alloc_context(list[0], open("/dev/null", O_RDWR), 100, NULL, 0));
	EQUAL(errno, EINVAL);
}

static const struct test tests[] = {
	TEST(devices_of_the_kernel_come_first),
	TEST(without_a_driver_or_a_file),
	TEST(soft_chooses),
	TEST(a_driver_is_called),
	TEST(a_driver_gets_what_it_lacks),
	TEST(events_of_a_driver),
	TEST(both_worlds),
	TEST(wrong_drivers),
};
MAIN(tests)
