/* A program linked to the interface of 1.0, as it was laid out then. */
#include "harness.h"

struct old_device { void *sysfs[2], *driver, *ops[2]; };
struct old_context {
	struct old_device *device;
	void *ops[27];
	int cmd_fd, async_fd, num_comp_vectors;
	void *abi_compat;
};
struct old_pd { struct old_context *context; uint32_t handle; };
struct old_mr { struct old_context *context; struct old_pd *pd; uint32_t handle, lkey, rkey; };
struct old_cq { struct old_context *context; void *cq_context; uint32_t handle; int cqe; };
struct old_srq { struct old_context *context; void *srq_context; struct old_pd *pd; uint32_t handle; };
struct old_ah { struct old_context *context; struct old_pd *pd; uint32_t handle; };
struct old_qp {
	struct old_context *context;
	void *qp_context;
	struct old_pd *pd;
	struct old_cq *send_cq, *recv_cq;
	struct old_srq *srq;
	uint32_t handle, qp_num;
	enum ibv_qp_state state;
	enum ibv_qp_type qp_type;
};
struct old_qp_init {
	void *qp_context;
	struct old_cq *send_cq, *recv_cq;
	struct old_srq *srq;
	struct ibv_qp_cap cap;
	enum ibv_qp_type qp_type;
	int sq_sig_all;
};
struct old_send_wr {
	struct old_send_wr *next;
	uint64_t wr_id;
	struct ibv_sge *sg_list;
	int num_sge;
	enum ibv_wr_opcode opcode;
	int send_flags;
	uint32_t imm_data;
	union {
		struct { uint64_t remote_addr; uint32_t rkey; } rdma;
		struct { uint64_t remote_addr, compare_add, swap; uint32_t rkey; } atomic;
		struct { struct old_ah *ah; uint32_t remote_qpn, remote_qkey; } ud;
	} wr;
};
struct old_recv_wr { struct old_recv_wr *next; uint64_t wr_id; struct ibv_sge *sg_list; int num_sge; };

/* Places in the table of a context of 1.0. */
#define POLL(cq, n, wc) ((int (*)(struct old_cq *, int, struct ibv_wc *))(cq)->context->ops[7])(cq, n, wc)
#define NOTIFY(cq, s) ((int (*)(struct old_cq *, int))(cq)->context->ops[8])(cq, s)
#define SEND(qp, wr, bad) ((int (*)(struct old_qp *, struct old_send_wr *, struct old_send_wr **)) \
	(qp)->context->ops[21])(qp, wr, bad)
#define RECV(qp, wr, bad) ((int (*)(struct old_qp *, struct old_recv_wr *, struct old_recv_wr **)) \
	(qp)->context->ops[22])(qp, wr, bad)
#define SRQ_RECV(srq, wr, bad) ((int (*)(struct old_srq *, struct old_recv_wr *, struct old_recv_wr **)) \
	(srq)->context->ops[16])(srq, wr, bad)

#define OLD(result, name, ...) result old_##name(__VA_ARGS__); \
	__asm__(".symver old_" #name ", ibv_" #name "@IBVERBS_1.0")
OLD(struct old_device **, get_device_list, int *);
OLD(void, free_device_list, struct old_device **);
OLD(const char *, get_device_name, struct old_device *);
OLD(uint64_t, get_device_guid, struct old_device *);
OLD(struct old_context *, open_device, struct old_device *);
OLD(int, close_device, struct old_context *);
OLD(int, query_device, struct old_context *, struct ibv_device_attr *);
OLD(int, query_port, struct old_context *, uint8_t, void *);
OLD(int, query_gid, struct old_context *, uint8_t, int, union ibv_gid *);
OLD(int, query_pkey, struct old_context *, uint8_t, int, uint16_t *);
OLD(struct old_pd *, alloc_pd, struct old_context *);
OLD(int, dealloc_pd, struct old_pd *);
OLD(struct old_mr *, reg_mr, struct old_pd *, void *, size_t, int);
OLD(int, dereg_mr, struct old_mr *);
OLD(struct old_cq *, create_cq, struct old_context *, int, void *, struct ibv_comp_channel *, int);
OLD(int, resize_cq, struct old_cq *, int);
OLD(int, destroy_cq, struct old_cq *);
OLD(int, get_cq_event, struct ibv_comp_channel *, struct old_cq **, void **);
OLD(void, ack_cq_events, struct old_cq *, unsigned);
OLD(int, get_async_event, struct old_context *, struct ibv_async_event *);
OLD(void, ack_async_event, struct ibv_async_event *);
OLD(struct old_srq *, create_srq, struct old_pd *, struct ibv_srq_init_attr *);
OLD(int, modify_srq, struct old_srq *, struct ibv_srq_attr *, int);
OLD(int, query_srq, struct old_srq *, struct ibv_srq_attr *);
OLD(int, destroy_srq, struct old_srq *);
OLD(struct old_qp *, create_qp, struct old_pd *, struct old_qp_init *);
OLD(int, modify_qp, struct old_qp *, struct ibv_qp_attr *, int);
OLD(int, query_qp, struct old_qp *, struct ibv_qp_attr *, int, struct old_qp_init *);
OLD(int, destroy_qp, struct old_qp *);
OLD(struct old_ah *, create_ah, struct old_pd *, struct ibv_ah_attr *);
OLD(int, destroy_ah, struct old_ah *);
OLD(int, attach_mcast, struct old_qp *, union ibv_gid *, uint16_t);
OLD(int, detach_mcast, struct old_qp *, union ibv_gid *, uint16_t);

static struct old_context *open_old(void)
{
	int n = -1;
	struct old_device **list = old_get_device_list(&n);
	CHECK(list && n > 0 && list[0] && !list[n]);
	struct old_device **again = old_get_device_list(NULL);
	CHECK(again[0] == list[0]);
	old_free_device_list(again);
	CHECK(strlen(old_get_device_name(list[0])) > 0);
	CHECK(old_get_device_guid(list[0]));
	struct old_context *context = old_open_device(list[0]);
	CHECK(context && context->device == list[0]);
	old_free_device_list(list);
	return context;
}

static struct ibv_wc old_completion(struct old_cq *cq)
{
	struct ibv_wc wc;
	int n;
	while (!(n = POLL(cq, 1, &wc)))
		usleep(50);
	EQUAL(n, 1);
	return wc;
}

static void queries(void)
{
	struct old_context *context = open_old();
	struct ibv_device_attr attr;
	EQUAL(old_query_device(context, &attr), 0);
	CHECK(attr.node_guid == old_get_device_guid(context->device));
	/* 48 bytes were all there was of it. */
	unsigned char port[64];
	memset(port, 0xee, sizeof port);
	EQUAL(old_query_port(context, 1, port), 0);
	EQUAL(*(int *)port, IBV_PORT_ACTIVE);
	for (int i = 48; i < 64; i++)
		EQUAL(port[i], 0xee);
	union ibv_gid gid;
	uint16_t pkey;
	EQUAL(old_query_gid(context, 1, 0, &gid), 0);
	EQUAL(old_query_pkey(context, 1, 0, &pkey), 0);
	EQUAL(ntohs(pkey), 0xffff);
	EQUAL(old_close_device(context), 0);
	EQUAL(old_close_device(context), ENOENT);
	EQUAL(old_query_device(context, &attr), ENOENT);
}

struct end {
	struct old_pd *pd;
	struct old_mr *mr;
	struct old_cq *cq;
	struct old_srq *srq;
	struct old_qp *qp;
	char *memory;
};

static struct end end_on(struct old_context *context, struct ibv_comp_channel *channel, enum ibv_qp_type type, bool srq)
{
	struct end e;
	e.pd = old_alloc_pd(context);
	CHECK(e.pd && e.pd->context == context);
	e.memory = calloc(1, 8192);
	e.mr = old_reg_mr(e.pd, e.memory, 8192, ALL_ACCESS);
	CHECK(e.mr && e.mr->pd == e.pd && e.mr->lkey != e.mr->rkey);
	e.cq = old_create_cq(context, 16, e.memory, channel, 0);
	CHECK(e.cq && e.cq->cqe >= 16 && e.cq->cq_context == e.memory);
	EQUAL(old_resize_cq(e.cq, 32), 0);
	CHECK(e.cq->cqe >= 32);
	struct ibv_srq_init_attr srq_init = { .srq_context = e.memory, .attr = { .max_wr = 8, .max_sge = 1 } };
	e.srq = srq ? old_create_srq(e.pd, &srq_init) : NULL;
	struct old_qp_init init = { .qp_context = e.memory, .send_cq = e.cq, .recv_cq = e.cq, .srq = e.srq,
		.qp_type = type, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	e.qp = old_create_qp(e.pd, &init);
	CHECK(e.qp && e.qp->send_cq == e.cq && e.qp->qp_context == e.memory && e.qp->srq == e.srq);
	CHECK(init.cap.max_send_wr >= 4);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	EQUAL(old_modify_qp(e.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			    (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)), 0);
	EQUAL(e.qp->state, IBV_QPS_INIT);
	return e;
}

static void old_connect(struct end *a, struct end *b)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = b->qp->qp_num, .rq_psn = 9, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1 } };
	EQUAL(old_query_gid(a->qp->context, 1, 0, &attr.ah_attr.grh.dgid), 0);
	EQUAL(old_modify_qp(a->qp, &attr, RTR_RC), 0);
	attr = rts_attr();
	attr.sq_psn = 9;
	EQUAL(old_modify_qp(a->qp, &attr, RTS_RC), 0);
	struct old_qp_init init;
	/* Programs of that time had no rate_limit at the end of this. */
	struct { struct ibv_qp_attr attr; } query;
	memset(&query, 0xee, sizeof query);
	EQUAL(old_query_qp(a->qp, &query.attr, IBV_QP_STATE, &init), 0);
	EQUAL(query.attr.qp_state, IBV_QPS_RTS);
	EQUAL(query.attr.rate_limit, 0xeeeeeeee);
	CHECK(init.send_cq == a->cq && init.srq == a->srq && init.qp_context == a->memory);
}

static void connection(void)
{
	struct old_context *context = open_old();
	struct ibv_comp_channel *channel = ibv_create_comp_channel((struct ibv_context *)context);
	CHECK(channel);
	struct end a = end_on(context, NULL, IBV_QPT_RC, false), b = end_on(context, channel, IBV_QPT_RC, true);
	old_connect(&a, &b);
	old_connect(&b, &a);
	struct ibv_sge sge = { (uintptr_t)b.memory, 64, b.mr->lkey };
	struct old_recv_wr second = { .wr_id = 8, .sg_list = &sge, .num_sge = 1 };
	struct old_recv_wr first = { .next = &second, .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	EQUAL(SRQ_RECV(b.srq, &first, &bad_recv), 0);
	EQUAL(NOTIFY(b.cq, 0), 0);
	strcpy(a.memory, "from 2006");
	struct ibv_sge from = { (uintptr_t)a.memory, 16, a.mr->lkey };
	struct old_send_wr write = { .wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED };
	write.wr.rdma.remote_addr = (uintptr_t)b.memory + 4096;
	write.wr.rdma.rkey = b.mr->rkey;
	struct old_send_wr send = { .next = &write, .wr_id = 1, .sg_list = &from, .num_sge = 1,
		.opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(77) }, *bad;
	EQUAL(SEND(a.qp, &send, &bad), 0);
	EQUAL(old_completion(a.cq).wr_id, 1);
	EQUAL(old_completion(a.cq).wr_id, 2);
	struct old_cq *cq;
	void *cq_context;
	EQUAL(old_get_cq_event(channel, &cq, &cq_context), 0);
	CHECK(cq == b.cq && cq_context == b.memory);
	old_ack_cq_events(cq, 1);
	struct ibv_wc wc = old_completion(b.cq);
	EQUAL(wc.wr_id, 7);
	EQUAL(ntohl(wc.imm_data), 77);
	CHECK(!strcmp(b.memory, "from 2006") && !strcmp(b.memory + 4096, "from 2006"));
	write.opcode = IBV_WR_BIND_MW;
	EQUAL(SEND(a.qp, &send, &bad), EINVAL);
	CHECK(bad == &write);

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	EQUAL(old_modify_qp(b.qp, &attr, IBV_QP_STATE), 0);
	struct ibv_async_event event;
	EQUAL(old_get_async_event(context, &event), 0);
	EQUAL(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK((void *)event.element.qp == b.qp);
	old_ack_async_event(&event);

	EQUAL(old_destroy_cq(b.cq), EBUSY);
	EQUAL(old_destroy_qp(b.qp), 0);
	EQUAL(old_destroy_qp(b.qp), ENOENT);
	CHECK(SEND(b.qp, &send, &bad) > 0 && bad == &send);
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	EQUAL(old_modify_srq(b.srq, &limit, IBV_SRQ_LIMIT), 0);
	EQUAL(old_query_srq(b.srq, &limit), 0);
	EQUAL(limit.srq_limit, 1);
	EQUAL(old_destroy_srq(b.srq), 0);
	EQUAL(old_destroy_cq(b.cq), 0);
	EQUAL(ibv_destroy_comp_channel(channel), 0);
	EQUAL(old_dereg_mr(b.mr), 0);
	EQUAL(old_dealloc_pd(b.pd), 0);
	EQUAL(old_dealloc_pd(b.pd), ENOENT);
	EQUAL(old_close_device(context), 0);
	EQUAL(old_dereg_mr(a.mr), ENOENT);
}

static void datagrams(void)
{
	struct old_context *context = open_old();
	struct end e = end_on(context, NULL, IBV_QPT_UD, false);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	EQUAL(old_modify_qp(e.qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	EQUAL(old_modify_qp(e.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1 };
	EQUAL(old_query_gid(context, 1, 0, &to.grh.dgid), 0);
	struct old_ah *ah = old_create_ah(e.pd, &to);
	CHECK(ah && ah->pd == e.pd);
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, 9, 9, 9 } };
	EQUAL(old_attach_mcast(e.qp, &to.grh.dgid, 0), EINVAL);
	EQUAL(old_attach_mcast(e.qp, &group, 0), 0);
	EQUAL(old_detach_mcast(e.qp, &group, 0), 0);
	EQUAL(old_detach_mcast(e.qp, &group, 0), EINVAL);
	struct ibv_sge into = { (uintptr_t)e.memory, 128, e.mr->lkey };
	struct old_recv_wr recv = { .wr_id = 3, .sg_list = &into, .num_sge = 1 }, *bad_recv;
	EQUAL(RECV(e.qp, &recv, &bad_recv), 0);
	strcpy(e.memory + 4096, "old datagram");
	struct ibv_sge from = { (uintptr_t)e.memory + 4096, 16, e.mr->lkey };
	struct old_send_wr wr = { .wr_id = 4, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = e.qp->qp_num;
	wr.wr.ud.remote_qkey = 5;
	EQUAL(SEND(e.qp, &wr, &bad), 0);
	EQUAL(old_completion(e.cq).wr_id + old_completion(e.cq).wr_id, 7);
	CHECK(!strcmp(e.memory + 40, "old datagram"));
	EQUAL(old_destroy_ah(ah), 0);
	CHECK(SEND(e.qp, &wr, &bad) > 0 && bad == &wr);
}

static const struct test tests[] = {
	TEST(queries),
	TEST(connection),
	TEST(datagrams),
};
MAIN(tests)
