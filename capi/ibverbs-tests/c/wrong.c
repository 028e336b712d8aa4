/* Every function of the interface, asked wrongly: the errno that is documented, and nothing changed. One row for each row
 * of docs/coverage.tsv; a test holds the two lists together. Where nothing that can be passed is wrong, the row says so by
 * what it checks instead. A NULL that the header's inline functions follow themselves cannot be tried here. */
#include "harness.h"
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

/* Exported, and declared in headers that are not installed. */
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *, struct ib_uverbs_ah_attr *);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *, struct ib_uverbs_qp_attr *);
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *, struct ib_user_path_rec *);
void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *, struct ibv_sa_path_rec *);
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *, const char *, char *, size_t);
int ibv_dofork_range(void *, size_t);
int ibv_dontfork_range(void *, size_t);

static struct side s, other;
static struct ibv_qp_ex *ex;
static struct ibv_cq_ex *cq_ex;
static struct ibv_xrcd *xrcd;
static struct ibv_mw *mw;
static struct ibv_dm *dm;
static struct ibv_ah *ah;
static struct ibv_comp_channel *channel;
static struct ibv_wq *wq;
static struct ibv_counters *counters;
static struct ibv_context *closed;

/* Copies of objects, which are none. */
static struct ibv_pd no_pd;
static struct ibv_mr no_mr;
static struct ibv_cq no_cq;
static struct ibv_qp no_qp;
static struct ibv_srq no_srq;
static struct ibv_ah no_ah;
static struct ibv_mw no_mw;
static struct ibv_dm no_dm;
static struct ibv_xrcd no_xrcd;
static struct ibv_comp_channel no_channel;
static struct ibv_qp_ex no_ex;
static struct ibv_cq_ex no_cq_ex;
static struct ibv_wq no_wq;

/* A call that returns no object, and says why. */
#define NOTHING(call, code) do { errno = 0; CHECK(!(call)); EQUAL(errno, code); } while (0)
#define MINUS_ONE(call, code) do { errno = 0; EQUAL(call, -1); EQUAL(errno, code); } while (0)
/* A call that returns nothing at all. */
#define SILENT(call, code) do { errno = 0; call; EQUAL(errno, code); } while (0)

static void prepare(void)
{
	s = side_on(open_first());
	other = side_on(open_first());
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *shared = ibv_create_srq(s.pd, &srq);
	struct ibv_qp_init_attr plain = qp_init(&s, IBV_QPT_RC);
	struct ibv_qp_init_attr_ex init = { .send_cq = s.cq, .recv_cq = s.cq, .cap = plain.cap, .qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = s.pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_SEND_WITH_INV |
			IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_ATOMIC_WRITE };
	s.qp = ibv_create_qp_ex(s.context, &init);
	CHECK(s.qp && shared);
	ex = ibv_qp_to_qp_ex(s.qp);
	struct ibv_cq_init_attr_ex cq = { .cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS |
		IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK |
		IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG };
	cq_ex = ibv_create_cq_ex(s.context, &cq);
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1, .oflags = O_CREAT };
	xrcd = ibv_open_xrcd(s.context, &domain);
	mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_2);
	dm = ibv_alloc_dm(s.context, &(struct ibv_alloc_dm_attr){ .length = 64 });
	struct ibv_ah_attr to = address(&s);
	ah = ibv_create_ah(s.pd, &to);
	channel = ibv_create_comp_channel(s.context);
	struct ibv_wq_init_attr queue = { .max_wr = 4, .max_sge = 1, .pd = s.pd, .cq = s.cq };
	wq = ibv_create_wq(s.context, &queue);
	counters = ibv_create_counters(s.context, &(struct ibv_counters_init_attr){ 0 });
	CHECK(wq && counters);
	no_wq = *wq;
	CHECK(ex && cq_ex && xrcd && mw && dm && ah && channel);
	s.srq = shared;
	closed = open_first();
	EQUAL(ibv_close_device(closed), 0);
	no_pd = *s.pd, no_mr = *s.mr, no_cq = *s.cq, no_qp = *s.qp, no_srq = *shared, no_ah = *ah, no_mw = *mw;
	no_dm = *dm, no_xrcd = *xrcd, no_channel = *channel, no_ex = *ex, no_cq_ex = *cq_ex;
}

/* The objects are as before: the queue pair connects to itself and carries a message. */
static void still_works(void)
{
	connect_to(&s, &s);
	EQUAL(post_recv(&s, 2, 0, 64), 0);
	struct ibv_sge sge = part(&s, 128, 8);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&s, &wr), 0);
	struct ibv_wc one = completion(s.cq), two = completion(s.cq);
	EQUAL(one.status, IBV_WC_SUCCESS);
	EQUAL(two.status, IBV_WC_SUCCESS);
	EQUAL(one.wr_id + two.wr_id, 3);
	expect_none(s.cq);
}

static union ibv_gid no_group = { .raw = { 1, 2, 3 } };

#define ROWS(ROW) \
	ROW(ibv_attach_mcast, EQUAL(ibv_attach_mcast(s.qp, &no_group, 0), EINVAL); EQUAL(ibv_attach_mcast(&no_qp, &no_group, 0), ENOENT)) \
	ROW(ibv_copy_ah_attr_from_kern, struct ib_uverbs_ah_attr k = { .is_global = 1 }; struct ibv_ah_attr a; \
		ibv_copy_ah_attr_from_kern(&a, &k); EQUAL(a.is_global, 1)) \
	ROW(ibv_create_ah, struct ibv_ah_attr a = address(&s); a.port_num = 0; NOTHING(ibv_create_ah(s.pd, &a), EINVAL); \
		a = address(&s); NOTHING(ibv_create_ah(&no_pd, &a), ENOENT)) \
	ROW(ibv_create_ah_from_wc, struct ibv_wc wc = { 0 }; struct ibv_grh grh = { 0 }; \
		NOTHING(ibv_create_ah_from_wc(s.pd, &wc, &grh, 1), EINVAL)) \
	ROW(ibv_destroy_ah, EQUAL(ibv_destroy_ah(&no_ah), ENOENT); EQUAL(ibv_destroy_ah(NULL), EINVAL)) \
	ROW(ibv_detach_mcast, EQUAL(ibv_detach_mcast(s.qp, &no_group, 0), EINVAL); EQUAL(ibv_detach_mcast(&no_qp, &no_group, 0), ENOENT)) \
	ROW(ibv_init_ah_from_wc, struct ibv_wc wc = { .wc_flags = IBV_WC_GRH }; struct ibv_grh grh = { 0 }; struct ibv_ah_attr a; \
		CHECK(ibv_init_ah_from_wc(s.context, 7, &wc, &grh, &a))) \
	ROW(ibv_resolve_eth_l2_from_gid, struct ibv_ah_attr a = address(&s); uint16_t v; \
		MINUS_ONE(ibv_resolve_eth_l2_from_gid(s.context, &a, NULL, &v), EINVAL)) \
	ROW(ibv_cq_ex_to_cq, CHECK((void *)ibv_cq_ex_to_cq(cq_ex) == (void *)cq_ex)) \
	ROW(ibv_create_cq, NOTHING(ibv_create_cq(s.context, 0, NULL, NULL, 0), EINVAL); NOTHING(ibv_create_cq(s.context, -1, NULL, NULL, 0), EINVAL); \
		NOTHING(ibv_create_cq(s.context, 4, NULL, NULL, 99), EINVAL); NOTHING(ibv_create_cq(s.context, 4, NULL, &no_channel, 0), ENOENT); \
		NOTHING(ibv_create_cq(closed, 4, NULL, NULL, 0), ENOENT)) \
	ROW(ibv_create_cq_ex, struct ibv_cq_init_attr_ex i = { .cqe = 4, .comp_mask = 1 << 9 }; NOTHING(ibv_create_cq_ex(s.context, &i), EOPNOTSUPP); \
		NOTHING(ibv_create_cq_ex(s.context, NULL), EINVAL)) \
	ROW(ibv_destroy_cq, EQUAL(ibv_destroy_cq(&no_cq), ENOENT); EQUAL(ibv_destroy_cq(s.cq), EBUSY)) \
	ROW(ibv_end_poll, SILENT(ibv_end_poll(cq_ex), EINVAL)) \
	ROW(ibv_modify_cq, struct ibv_modify_cq_attr a = { .attr_mask = 8 }; EQUAL(ibv_modify_cq(s.cq, &a), EINVAL); EQUAL(ibv_modify_cq(&no_cq, &a), ENOENT)) \
	ROW(ibv_next_poll, EQUAL(ibv_next_poll(cq_ex), EINVAL)) \
	ROW(ibv_poll_cq, struct ibv_wc wc; MINUS_ONE(ibv_poll_cq(s.cq, -1, &wc), EINVAL); MINUS_ONE(ibv_poll_cq(&no_cq, 1, &wc), ENOENT)) \
	ROW(ibv_req_notify_cq, EQUAL(ibv_req_notify_cq(&no_cq, 0), ENOENT)) \
	ROW(ibv_resize_cq, EQUAL(ibv_resize_cq(s.cq, 0), EINVAL); EQUAL(ibv_resize_cq(s.cq, -5), EINVAL); EQUAL(ibv_resize_cq(&no_cq, 8), ENOENT)) \
	ROW(ibv_start_poll, struct ibv_poll_cq_attr a = { .comp_mask = 1 }; EQUAL(ibv_start_poll(cq_ex, &a), EINVAL)) \
	ROW(ibv_wc_read_byte_len, EQUAL(ibv_wc_read_byte_len(&no_cq_ex), 0); EQUAL(ibv_wc_read_byte_len(cq_ex), 0)) \
	ROW(ibv_wc_read_completion_ts, EQUAL(ibv_wc_read_completion_ts(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_completion_wallclock_ns, EQUAL(ibv_wc_read_completion_wallclock_ns(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_cvlan, EQUAL(ibv_wc_read_cvlan(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_dlid_path_bits, EQUAL(ibv_wc_read_dlid_path_bits(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_imm_data, EQUAL(ibv_wc_read_imm_data(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_opcode, EQUAL(ibv_wc_read_opcode(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_qp_num, EQUAL(ibv_wc_read_qp_num(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_sl, EQUAL(ibv_wc_read_sl(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_slid, EQUAL(ibv_wc_read_slid(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_src_qp, EQUAL(ibv_wc_read_src_qp(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_tm_info, struct ibv_cq_init_attr_ex i = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_TM_INFO }; \
		NOTHING(ibv_create_cq_ex(s.context, &i), EOPNOTSUPP)) \
	ROW(ibv_wc_read_vendor_err, EQUAL(ibv_wc_read_vendor_err(&no_cq_ex), 0)) \
	ROW(ibv_wc_read_wc_flags, EQUAL(ibv_wc_read_wc_flags(&no_cq_ex), 0)) \
	ROW(__ibv_reg_mr, NOTHING(__ibv_reg_mr(s.pd, s.memory, 64, IBV_ACCESS_REMOTE_WRITE, 1), EINVAL)) \
	ROW(__ibv_reg_mr_iova, NOTHING(__ibv_reg_mr_iova(s.pd, s.memory, 64, UINT64_MAX, 0, 1), EINVAL)) \
	ROW(ibv_advise_mr, struct ibv_sge g = part(&s, 0, 8); EQUAL(ibv_advise_mr(s.pd, 0, 8, &g, 1), EINVAL); EQUAL(ibv_advise_mr(&no_pd, 0, 0, &g, 1), ENOENT)) \
	ROW(ibv_alloc_dm, struct ibv_alloc_dm_attr a = { .length = SIZE_MAX }; NOTHING(ibv_alloc_dm(s.context, &a), EINVAL); \
		NOTHING(ibv_alloc_dm(s.context, NULL), EINVAL)) \
	ROW(ibv_alloc_mw, NOTHING(ibv_alloc_mw(s.pd, 9), EINVAL); NOTHING(ibv_alloc_mw(&no_pd, IBV_MW_TYPE_1), ENOENT)) \
	ROW(ibv_alloc_null_mr, NOTHING(ibv_alloc_null_mr(&no_pd), ENOENT)) \
	ROW(ibv_bind_mw, struct ibv_mw_bind b = { 0 }; EQUAL(ibv_bind_mw(s.qp, mw, &b), EINVAL)) \
	ROW(ibv_dealloc_mw, EQUAL(ibv_dealloc_mw(&no_mw), ENOENT)) \
	ROW(ibv_dereg_mr, EQUAL(ibv_dereg_mr(&no_mr), ENOENT); EQUAL(ibv_dereg_mr(NULL), EINVAL)) \
	ROW(ibv_dofork_range, EQUAL(ibv_dofork_range(NULL, 0), 0)) \
	ROW(ibv_dontfork_range, EQUAL(ibv_dontfork_range(NULL, 0), 0)) \
	ROW(ibv_free_dm, EQUAL(ibv_free_dm(&no_dm), ENOENT)) \
	ROW(ibv_import_dm, NOTHING(ibv_import_dm(s.context, 0xffffff), ENOENT)) \
	ROW(ibv_import_mr, NOTHING(ibv_import_mr(s.pd, 0xffffff), ENOENT); NOTHING(ibv_import_mr(&no_pd, s.mr->handle), ENOENT)) \
	ROW(ibv_inc_rkey, EQUAL(ibv_inc_rkey(0x12ff), 0x1200)) \
	ROW(ibv_memcpy_from_dm, char b[8]; EQUAL(ibv_memcpy_from_dm(b, dm, 64, 4), EINVAL); EQUAL(ibv_memcpy_from_dm(b, dm, 1, 4), EINVAL)) \
	ROW(ibv_memcpy_to_dm, EQUAL(ibv_memcpy_to_dm(dm, 60, "12345678", 8), EINVAL); EQUAL(ibv_memcpy_to_dm(dm, 0, "123", 3), EINVAL)) \
	ROW(ibv_reg_dm_mr, NOTHING(ibv_reg_dm_mr(s.pd, dm, 0, 65, IBV_ACCESS_ZERO_BASED), EINVAL); \
		NOTHING(ibv_reg_dm_mr(s.pd, &no_dm, 0, 64, IBV_ACCESS_ZERO_BASED), ENOENT)) \
	ROW(ibv_reg_dmabuf_mr, NOTHING(ibv_reg_dmabuf_mr(s.pd, 0, 64, 0, -1, 0), EBADF); NOTHING(ibv_reg_dmabuf_mr(&no_pd, 0, 64, 0, 0, 0), ENOENT)) \
	ROW(ibv_reg_mr, NOTHING((ibv_reg_mr)(s.pd, s.memory, 0, 0), EINVAL); NOTHING((ibv_reg_mr)(s.pd, (void *)4096, 64, 0), EFAULT); \
		NOTHING((ibv_reg_mr)(&no_pd, s.memory, 64, 0), ENOENT); NOTHING((ibv_reg_mr)(s.pd, s.memory, 64, 1 << 15), EINVAL)) \
	ROW(ibv_reg_mr_iova, NOTHING((ibv_reg_mr_iova)(s.pd, s.memory, 64, UINT64_MAX - 8, 0), EINVAL)) \
	ROW(ibv_reg_mr_iova2, NOTHING(ibv_reg_mr_iova2(s.pd, s.memory, SIZE_MAX, 0, 0), EINVAL)) \
	ROW(ibv_rereg_mr, EQUAL(ibv_rereg_mr(s.mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT); \
		EQUAL(ibv_rereg_mr(s.mr, IBV_REREG_MR_CHANGE_PD, other.pd, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT); \
		EQUAL(ibv_rereg_mr(&no_mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT)) \
	ROW(ibv_unimport_dm, SILENT(ibv_unimport_dm(&no_dm), ENOENT)) \
	ROW(ibv_unimport_mr, SILENT(ibv_unimport_mr(&no_mr), ENOENT)) \
	ROW(ibv_wc_read_invalidated_rkey, EQUAL(ibv_wc_read_invalidated_rkey(&no_cq_ex), 0)) \
	ROW(ibv_wr_bind_mw, struct ibv_mw_bind_info i = { 0 }; ibv_wr_start(ex); ibv_wr_bind_mw(ex, &no_mw, 0, &i); EQUAL(ibv_wr_complete(ex), ENOENT)) \
	ROW(ibv_alloc_parent_domain, struct ibv_parent_domain_init_attr a = { .pd = &no_pd }; NOTHING(ibv_alloc_parent_domain(s.context, &a), ENOENT)) \
	ROW(ibv_alloc_pd, NOTHING(ibv_alloc_pd(NULL), EINVAL); NOTHING(ibv_alloc_pd(closed), ENOENT)) \
	ROW(ibv_alloc_td, struct ibv_td_init_attr a = { 1 }; NOTHING(ibv_alloc_td(s.context, &a), EINVAL)) \
	ROW(ibv_dealloc_pd, EQUAL(ibv_dealloc_pd(s.pd), EBUSY); EQUAL(ibv_dealloc_pd(&no_pd), ENOENT)) \
	ROW(ibv_dealloc_td, struct ibv_td no = { s.context }; EQUAL(ibv_dealloc_td(&no), ENOENT)) \
	ROW(ibv_import_pd, NOTHING(ibv_import_pd(s.context, 0xffffff), ENOENT); NOTHING(ibv_import_pd(closed, s.pd->handle), ENOENT)) \
	ROW(ibv_unimport_pd, SILENT(ibv_unimport_pd(&no_pd), ENOENT)) \
	ROW(ibv_copy_qp_attr_from_kern, struct ib_uverbs_qp_attr k = { .qkey = 5 }; struct ibv_qp_attr a; ibv_copy_qp_attr_from_kern(&a, &k); EQUAL(a.qkey, 5)) \
	ROW(ibv_create_qp, struct ibv_qp_init_attr i = qp_init(&s, 77); NOTHING(ibv_create_qp(s.pd, &i), EINVAL); \
		i = qp_init(&s, IBV_QPT_RC); i.cap.max_send_wr = 1 << 30; NOTHING(ibv_create_qp(s.pd, &i), EINVAL); \
		i = qp_init(&s, IBV_QPT_RC); i.send_cq = &no_cq; NOTHING(ibv_create_qp(s.pd, &i), ENOENT); \
		i = qp_init(&s, IBV_QPT_RC); NOTHING(ibv_create_qp(other.pd, &i), EINVAL); NOTHING(ibv_create_qp(s.pd, NULL), EINVAL)) \
	ROW(ibv_create_qp_ex, struct ibv_qp_init_attr_ex i = { .comp_mask = 1 << 20 }; NOTHING(ibv_create_qp_ex(s.context, &i), EOPNOTSUPP)) \
	ROW(ibv_destroy_qp, EQUAL(ibv_destroy_qp(&no_qp), ENOENT); EQUAL(ibv_destroy_qp(NULL), EINVAL)) \
	ROW(ibv_is_qpt_supported, EQUAL(ibv_is_qpt_supported(0, IBV_QPT_RC), 0)) \
	ROW(ibv_modify_qp, struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS }; EQUAL(ibv_modify_qp(s.qp, &a, IBV_QP_STATE), EINVAL); \
		EQUAL(ibv_modify_qp(s.qp, &a, 1 << 30), EINVAL); EQUAL(ibv_modify_qp(s.qp, NULL, IBV_QP_STATE), EINVAL); \
		a.qp_state = 99; EQUAL(ibv_modify_qp(s.qp, &a, IBV_QP_STATE), EINVAL); EQUAL(ibv_modify_qp(&no_qp, &a, IBV_QP_STATE), ENOENT)) \
	ROW(ibv_modify_qp_rate_limit, struct ibv_qp_rate_limit_attr a = { 0 }; EQUAL(ibv_modify_qp_rate_limit(s.qp, &a), EOPNOTSUPP)) \
	ROW(ibv_open_qp, struct ibv_qp_open_attr a = { 0 }; NOTHING(ibv_open_qp(s.context, &a), EINVAL)) \
	ROW(ibv_post_recv, struct ibv_recv_wr w = { .num_sge = 99 }, *bad = NULL; EQUAL(ibv_post_recv(s.qp, &w, &bad), EINVAL); CHECK(bad == &w); \
		EQUAL(ibv_post_recv(&no_qp, &w, &bad), ENOENT)) \
	ROW(ibv_post_send, struct ibv_send_wr w = { .opcode = 99 }, *bad = NULL; EQUAL(ibv_post_send(s.qp, &w, &bad), EINVAL); CHECK(bad == &w); \
		EQUAL(ibv_post_send(&no_qp, &w, &bad), ENOENT)) \
	ROW(ibv_qp_to_qp_ex, NOTHING(ibv_qp_to_qp_ex(&no_qp), ENOENT)) \
	ROW(ibv_query_ece, struct ibv_ece e = { 1, 2, 3 }; EQUAL(ibv_query_ece(s.qp, NULL), EINVAL); EQUAL(ibv_query_ece(&no_qp, &e), ENOENT); EQUAL(e.options, 2)) \
	ROW(ibv_query_qp, struct ibv_qp_attr a; struct ibv_qp_init_attr i; EQUAL(ibv_query_qp(&no_qp, &a, 0, &i), ENOENT); EQUAL(ibv_query_qp(s.qp, NULL, 0, &i), EINVAL)) \
	ROW(ibv_query_qp_data_in_order, EQUAL(ibv_query_qp_data_in_order(&no_qp, IBV_WR_SEND, 0), 0)) \
	ROW(ibv_set_ece, struct ibv_ece e = { .comp_mask = 1 }; EQUAL(ibv_set_ece(s.qp, &e), EINVAL); EQUAL(ibv_set_ece(s.qp, NULL), EINVAL); EQUAL(ibv_set_ece(&no_qp, &e), ENOENT)) \
	ROW(ibv_wr_abort, SILENT(ibv_wr_abort(ex), EINVAL)) \
	ROW(ibv_wr_atomic_cmp_swp, SILENT(ibv_wr_atomic_cmp_swp(ex, 0, 0, 0, 0), EINVAL)) \
	ROW(ibv_wr_atomic_fetch_add, SILENT(ibv_wr_atomic_fetch_add(ex, 0, 0, 0), EINVAL)) \
	ROW(ibv_wr_atomic_write, SILENT(ibv_wr_atomic_write(ex, 0, 0, &no_pd), EINVAL); ibv_wr_start(ex); ibv_wr_atomic_write(ex, 0, 0, NULL); \
		EQUAL(ibv_wr_complete(ex), EINVAL)) \
	ROW(ibv_wr_complete, EQUAL(ibv_wr_complete(ex), EINVAL)) \
	ROW(ibv_wr_local_inv, SILENT(ibv_wr_local_inv(ex, 0), EINVAL)) \
	ROW(ibv_wr_rdma_read, SILENT(ibv_wr_rdma_read(ex, 0, 0), EINVAL)) \
	ROW(ibv_wr_rdma_write, SILENT(ibv_wr_rdma_write(ex, 0, 0), EINVAL)) \
	ROW(ibv_wr_rdma_write_imm, SILENT(ibv_wr_rdma_write_imm(ex, 0, 0, 0), EINVAL)) \
	ROW(ibv_wr_send, SILENT(ibv_wr_send(ex), EINVAL)) \
	ROW(ibv_wr_send_imm, SILENT(ibv_wr_send_imm(ex, 0), EINVAL)) \
	ROW(ibv_wr_send_inv, SILENT(ibv_wr_send_inv(ex, 0), EINVAL)) \
	ROW(ibv_wr_send_tso, CHECK(!ex->wr_send_tso)) \
	ROW(ibv_wr_set_inline_data, ibv_wr_start(ex); ibv_wr_set_inline_data(ex, s.memory, 8); EQUAL(ibv_wr_complete(ex), EINVAL)) \
	ROW(ibv_wr_set_inline_data_list, ibv_wr_start(ex); ibv_wr_send(ex); ibv_wr_set_inline_data_list(ex, 2, NULL); EQUAL(ibv_wr_complete(ex), EINVAL)) \
	ROW(ibv_wr_set_sge, ibv_wr_start(ex); ibv_wr_set_sge(ex, 0, 0, 0); EQUAL(ibv_wr_complete(ex), EINVAL)) \
	ROW(ibv_wr_set_sge_list, ibv_wr_start(ex); ibv_wr_send(ex); ibv_wr_set_sge_list(ex, 2, NULL); EQUAL(ibv_wr_complete(ex), EINVAL)) \
	ROW(ibv_wr_set_ud_addr, ibv_wr_start(ex); ibv_wr_send(ex); ibv_wr_set_ud_addr(ex, &no_ah, 0, 0); EQUAL(ibv_wr_complete(ex), ENOENT)) \
	ROW(ibv_wr_start, SILENT(ibv_wr_start(&no_ex), ENOENT)) \
	ROW(ibv_close_xrcd, EQUAL(ibv_close_xrcd(&no_xrcd), ENOENT)) \
	ROW(ibv_create_srq, struct ibv_srq_init_attr i = { .attr = { .max_wr = 1 << 30, .max_sge = 1 } }; NOTHING(ibv_create_srq(s.pd, &i), EINVAL); \
		NOTHING(ibv_create_srq(s.pd, NULL), EINVAL); NOTHING(ibv_create_srq(&no_pd, &i), ENOENT)) \
	ROW(ibv_create_srq_ex, struct ibv_srq_init_attr_ex i = { .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, \
		.srq_type = IBV_SRQT_TM, .pd = s.pd }; NOTHING(ibv_create_srq_ex(s.context, &i), EOPNOTSUPP)) \
	ROW(ibv_destroy_srq, EQUAL(ibv_destroy_srq(&no_srq), ENOENT); EQUAL(ibv_destroy_srq(NULL), EINVAL)) \
	ROW(ibv_get_srq_num, uint32_t n; EQUAL(ibv_get_srq_num(s.srq, &n), EOPNOTSUPP); EQUAL(ibv_get_srq_num(&no_srq, &n), ENOENT)) \
	ROW(ibv_modify_srq, struct ibv_srq_attr a = { .srq_limit = 99 }; EQUAL(ibv_modify_srq(s.srq, &a, IBV_SRQ_LIMIT), EINVAL); \
		EQUAL(ibv_modify_srq(&no_srq, &a, IBV_SRQ_LIMIT), ENOENT)) \
	ROW(ibv_open_xrcd, struct ibv_xrcd_init_attr a = { .comp_mask = 3, .fd = -7 }; NOTHING(ibv_open_xrcd(s.context, &a), EBADF); \
		a.comp_mask = 0; NOTHING(ibv_open_xrcd(s.context, &a), EINVAL)) \
	ROW(ibv_post_srq_ops, struct ibv_ops_wr w = { 0 }, *bad; EQUAL(ibv_post_srq_ops(s.srq, &w, &bad), EOPNOTSUPP)) \
	ROW(ibv_post_srq_recv, struct ibv_recv_wr w = { .num_sge = -1 }, *bad = NULL; EQUAL(ibv_post_srq_recv(s.srq, &w, &bad), EINVAL); CHECK(bad == &w)) \
	ROW(ibv_query_srq, struct ibv_srq_attr a; EQUAL(ibv_query_srq(&no_srq, &a), ENOENT); EQUAL(ibv_query_srq(s.srq, NULL), EINVAL)) \
	ROW(ibv_wr_set_xrc_srqn, ibv_wr_start(ex); ibv_wr_set_xrc_srqn(ex, 5); EQUAL(ibv_wr_complete(ex), EINVAL)) \
	ROW(ibv_create_flow, struct ibv_flow_attr a = { 0 }; NOTHING(ibv_create_flow(s.qp, &a), EINVAL); NOTHING(ibv_create_flow(&no_qp, &a), ENOENT); \
		NOTHING(ibv_create_flow(s.qp, NULL), EINVAL)) \
	ROW(ibv_create_flow_action_esp, struct ibv_flow_action_esp_attr a = { 0 }; NOTHING(ibv_create_flow_action_esp(s.context, &a), EOPNOTSUPP)) \
	ROW(ibv_create_rwq_ind_table, struct ibv_rwq_ind_table_init_attr a = { 0 }; NOTHING(ibv_create_rwq_ind_table(s.context, &a), EINVAL); \
		a.log_ind_tbl_size = 30; NOTHING(ibv_create_rwq_ind_table(s.context, &a), EINVAL); NOTHING(ibv_create_rwq_ind_table(s.context, NULL), EINVAL); \
		struct ibv_wq *none = &no_wq; a = (struct ibv_rwq_ind_table_init_attr){ .ind_tbl = &none }; NOTHING(ibv_create_rwq_ind_table(s.context, &a), ENOENT); \
		a.comp_mask = 1; NOTHING(ibv_create_rwq_ind_table(s.context, &a), EOPNOTSUPP); NOTHING(ibv_create_rwq_ind_table(closed, &a), ENOENT)) \
	ROW(ibv_create_wq, struct ibv_wq_init_attr a = { .pd = s.pd, .cq = s.cq }; NOTHING(ibv_create_wq(s.context, &a), EINVAL); \
		a.max_wr = 1; a.max_sge = 99; NOTHING(ibv_create_wq(s.context, &a), EINVAL); a.max_sge = 1; a.pd = &no_pd; NOTHING(ibv_create_wq(s.context, &a), ENOENT); \
		a.pd = s.pd; a.cq = &no_cq; NOTHING(ibv_create_wq(s.context, &a), ENOENT); a.cq = other.cq; NOTHING(ibv_create_wq(s.context, &a), EINVAL); \
		a.cq = s.cq; a.wq_type = 3; NOTHING(ibv_create_wq(s.context, &a), EINVAL); a.wq_type = IBV_WQT_RQ; a.comp_mask = 4; NOTHING(ibv_create_wq(s.context, &a), EOPNOTSUPP)) \
	ROW(ibv_destroy_flow, struct ibv_flow f = { .context = s.context }; EQUAL(ibv_destroy_flow(&f), ENOENT)) \
	ROW(ibv_destroy_flow_action, struct ibv_flow_action a = { .context = s.context }; EQUAL(ibv_destroy_flow_action(&a), EOPNOTSUPP)) \
	ROW(ibv_destroy_rwq_ind_table, struct ibv_rwq_ind_table t = { .context = s.context }; EQUAL(ibv_destroy_rwq_ind_table(&t), ENOENT)) \
	ROW(ibv_destroy_wq, struct ibv_wq w = { .context = s.context }; EQUAL(ibv_destroy_wq(&w), ENOENT)) \
	ROW(ibv_flow_label_to_udp_sport, CHECK(ibv_flow_label_to_udp_sport(UINT32_MAX) >= IB_ROCE_UDP_ENCAP_VALID_PORT_MIN)) \
	ROW(ibv_modify_flow_action_esp, struct ibv_flow_action a = { .context = s.context }; EQUAL(ibv_modify_flow_action_esp(&a, NULL), EOPNOTSUPP)) \
	ROW(ibv_modify_wq, struct ibv_wq_attr a = { .attr_mask = 64 }; EQUAL(ibv_modify_wq(wq, NULL), EINVAL); EQUAL(ibv_modify_wq(&no_wq, &a), ENOENT); \
		EQUAL(ibv_modify_wq(wq, &a), EINVAL); a = (struct ibv_wq_attr){ IBV_WQ_ATTR_STATE, 9, 0, 0, 0 }; EQUAL(ibv_modify_wq(wq, &a), EINVAL); \
		a = (struct ibv_wq_attr){ IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE, IBV_WQS_RDY, IBV_WQS_ERR, 0, 0 }; EQUAL(ibv_modify_wq(wq, &a), EINVAL); \
		a = (struct ibv_wq_attr){ IBV_WQ_ATTR_FLAGS, 0, 0, 1, 1 }; EQUAL(ibv_modify_wq(wq, &a), EOPNOTSUPP); EQUAL(wq->state, IBV_WQS_RESET)) \
	ROW(ibv_post_wq_recv, struct ibv_recv_wr w = { 0 }, *bad = NULL; EQUAL(ibv_post_wq_recv(wq, &w, &bad), EINVAL); CHECK(bad == &w); bad = NULL; \
		EQUAL(ibv_post_wq_recv(&no_wq, &w, &bad), ENOENT); CHECK(bad == &w)) \
	ROW(ibv_wc_read_flow_tag, EQUAL(ibv_wc_read_flow_tag(&no_cq_ex), 0)) \
	ROW(___ibv_query_port, struct ibv_port_attr a; EQUAL(___ibv_query_port(s.context, 2, &a), EINVAL)) \
	ROW(_ibv_query_gid_ex, struct ibv_gid_entry g; EQUAL(_ibv_query_gid_ex(s.context, 1, 0, NULL, 0, sizeof g), EINVAL); \
		EQUAL(_ibv_query_gid_ex(s.context, 1, 100, &g, 0, sizeof g), ENODATA)) \
	ROW(_ibv_query_gid_table, struct ibv_gid_entry g; EQUAL(_ibv_query_gid_table(s.context, &g, 1, 0, 0), -EINVAL); \
		EQUAL(_ibv_query_gid_table(s.context, &g, 1, 1, sizeof g), -EOPNOTSUPP)) \
	ROW(ibv_close_device, EQUAL(ibv_close_device(closed), ENOENT); EQUAL(ibv_close_device(NULL), EINVAL)) \
	ROW(ibv_get_pkey_index, MINUS_ONE(ibv_get_pkey_index(s.context, 1, 0x1234), EINVAL)) \
	ROW(ibv_import_device, NOTHING(ibv_import_device(-1), EBADF); NOTHING(ibv_import_device(0), EINVAL)) \
	ROW(ibv_open_device, NOTHING(ibv_open_device(NULL), EINVAL)) \
	ROW(ibv_query_device, struct ibv_device_attr a; EQUAL(ibv_query_device(s.context, NULL), EINVAL); EQUAL(ibv_query_device(closed, &a), ENOENT)) \
	ROW(ibv_query_device_ex, struct ibv_query_device_ex_input i = { .comp_mask = 1 }; struct ibv_device_attr_ex a; EQUAL(ibv_query_device_ex(s.context, &i, &a), EINVAL)) \
	ROW(ibv_query_gid, union ibv_gid g; MINUS_ONE(ibv_query_gid(s.context, 0, 0, &g), EINVAL); MINUS_ONE(ibv_query_gid(s.context, 1, -1, &g), EINVAL); \
		MINUS_ONE(ibv_query_gid(s.context, 1, 4000, &g), EINVAL)) \
	ROW(ibv_query_gid_ex, struct ibv_gid_entry g; EQUAL(ibv_query_gid_ex(s.context, 3, 0, &g, 0), EINVAL); EQUAL(ibv_query_gid_ex(s.context, 1, 0, &g, 7), EOPNOTSUPP)) \
	ROW(ibv_query_gid_table, struct ibv_gid_entry g; EQUAL(ibv_query_gid_table(s.context, &g, 0, 0), -EINVAL)) \
	ROW(ibv_query_pkey, __be16 k; MINUS_ONE(ibv_query_pkey(s.context, 1, 5, &k), EINVAL); MINUS_ONE(ibv_query_pkey(s.context, 9, 0, &k), EINVAL)) \
	ROW(ibv_query_port, struct ibv_port_attr a; EQUAL(ibv_query_port(s.context, 0, &a), EINVAL); EQUAL(ibv_query_port(closed, 1, &a), ENOENT)) \
	ROW(ibv_query_rt_values_ex, struct ibv_values_ex v = { .comp_mask = 8 }; EQUAL(ibv_query_rt_values_ex(s.context, &v), EINVAL)) \
	ROW(verbs_get_ctx, CHECK(verbs_get_ctx(s.context))) \
	ROW(ibv_attach_counters_point_flow, struct ibv_counter_attach_attr a = { .counter_desc = 7 }; struct ibv_counters c = { s.context }; struct ibv_flow f = { .context = s.context }; \
		EQUAL(ibv_attach_counters_point_flow(counters, NULL, NULL), EINVAL); EQUAL(ibv_attach_counters_point_flow(&c, &a, NULL), ENOENT); \
		EQUAL(ibv_attach_counters_point_flow(counters, &a, NULL), EINVAL); a.counter_desc = 0; EQUAL(ibv_attach_counters_point_flow(counters, &a, &f), ENOENT); \
		a.index = UINT32_MAX; EQUAL(ibv_attach_counters_point_flow(counters, &a, NULL), EINVAL); a.index = 0, a.comp_mask = 1; \
		EQUAL(ibv_attach_counters_point_flow(counters, &a, NULL), EOPNOTSUPP)) \
	ROW(ibv_create_counters, struct ibv_counters_init_attr a = { 1 }; NOTHING(ibv_create_counters(s.context, &a), EOPNOTSUPP); NOTHING(ibv_create_counters(s.context, NULL), EINVAL); \
		NOTHING(ibv_create_counters(closed, &a), ENOENT)) \
	ROW(ibv_destroy_counters, struct ibv_counters c = { s.context }; EQUAL(ibv_destroy_counters(&c), ENOENT)) \
	ROW(ibv_read_counters, struct ibv_counters c = { s.context }; uint64_t v; EQUAL(ibv_read_counters(&c, &v, 1, 0), ENOENT); \
		EQUAL(ibv_read_counters(counters, &v, 1, 0), EINVAL); EQUAL(ibv_read_counters(counters, &v, 0, 0), EINVAL); EQUAL(ibv_read_counters(counters, NULL, 1, 0), EINVAL); \
		EQUAL(ibv_read_counters(counters, &v, 1, 4), EOPNOTSUPP)) \
	ROW(__ibv_get_device_list, struct ibv_device **l = ibv_get_device_list(NULL); CHECK(l); ibv_free_device_list(l)) \
	ROW(ibv_free_device_list, ibv_free_device_list(NULL)) \
	ROW(ibv_get_device_guid, EQUAL(ibv_get_device_guid(NULL), 0); EQUAL(errno, EINVAL)) \
	ROW(ibv_get_device_index, MINUS_ONE(ibv_get_device_index(NULL), EINVAL)) \
	ROW(ibv_get_device_list, struct ibv_device **l = (ibv_get_device_list)(NULL); CHECK(l); ibv_free_device_list(l)) \
	ROW(ibv_get_device_name, NOTHING(ibv_get_device_name(NULL), EINVAL)) \
	ROW(ibv_get_sysfs_path, CHECK(ibv_get_sysfs_path())) \
	ROW(ibv_node_type_str, CHECK(strstr(ibv_node_type_str(99), "unknown"))) \
	ROW(ibv_read_sysfs_file, char b[8]; CHECK(ibv_read_sysfs_file("/nonexistent", "x", b, sizeof b) < 0)) \
	ROW(ibv_register_driver, CHECK(1)) \
	ROW(ibv_ack_async_event, struct ibv_async_event e = { .event_type = IBV_EVENT_QP_FATAL, .element.qp = &no_qp }; ibv_ack_async_event(&e)) \
	ROW(ibv_ack_cq_events, SILENT(ibv_ack_cq_events(&no_cq, 1), ENOENT)) \
	ROW(ibv_create_comp_channel, NOTHING(ibv_create_comp_channel(NULL), EINVAL); NOTHING(ibv_create_comp_channel(closed), ENOENT)) \
	ROW(ibv_destroy_comp_channel, EQUAL(ibv_destroy_comp_channel(&no_channel), ENOENT)) \
	ROW(ibv_get_async_event, struct ibv_async_event e; MINUS_ONE(ibv_get_async_event(closed, &e), ENOENT)) \
	ROW(ibv_get_cq_event, struct ibv_cq *q; void *c; MINUS_ONE(ibv_get_cq_event(&no_channel, &q, &c), ENOENT)) \
	ROW(ibv_copy_path_rec_from_kern, struct ib_user_path_rec k = { .reversible = 1 }; struct ibv_sa_path_rec r; ibv_copy_path_rec_from_kern(&r, &k); EQUAL(r.reversible, 1)) \
	ROW(ibv_copy_path_rec_to_kern, struct ib_user_path_rec k; struct ibv_sa_path_rec r = { .hop_limit = 3 }; ibv_copy_path_rec_to_kern(&k, &r); EQUAL(k.hop_limit, 3)) \
	ROW(ibv_event_type_str, CHECK(strstr(ibv_event_type_str(99), "unknown"))) \
	ROW(ibv_fork_init, EQUAL(ibv_fork_init(), 0)) \
	ROW(ibv_is_fork_initialized, EQUAL(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED)) \
	ROW(ibv_port_state_str, CHECK(ibv_port_state_str(99))) \
	ROW(ibv_rate_to_mbps, EQUAL(ibv_rate_to_mbps(99), -1)) \
	ROW(ibv_rate_to_mult, EQUAL(ibv_rate_to_mult(99), -1)) \
	ROW(ibv_wc_status_str, CHECK(strstr(ibv_wc_status_str(99), "unknown"))) \
	ROW(mbps_to_ibv_rate, EQUAL(mbps_to_ibv_rate(-5), IBV_RATE_MAX)) \
	ROW(mult_to_ibv_rate, EQUAL(mult_to_ibv_rate(-5), IBV_RATE_MAX))

#define FUNCTION(name, ...) static void wrong_##name(void) { __VA_ARGS__; }
#define LINE(name, ...) { #name, wrong_##name },

ROWS(FUNCTION)
static const struct test rows[] = { ROWS(LINE) };
enum { COUNT = sizeof rows / sizeof *rows };

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	if (!strcmp(argv[1], "--list")) {
		for (int i = 0; i < COUNT; i++)
			puts(rows[i].name);
		return 0;
	}
	alarm(120);
	prepare();
	for (int i = 0; i < COUNT; i++) {
		fprintf(stderr, "%s\n", rows[i].name);
		rows[i].run();
	}
	still_works();
	return 0;
}
