/* Names that libibverbs got after version 44: the headers here lack them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "harness.h"

struct ibv_buf;
struct ibv_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct ibv_buf *buf;
};
enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_FD_OFFSET = 8, MASK_DMAH = 16, MASK_BUF = 32 };

static void *named(const char *name, const char *version)
{
	void *function = dlvsym(RTLD_DEFAULT, name, version);
	if (!function)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(function);
	return function;
}

#define FUNCTION(type, name, version, ...) \
	type (*name)(__VA_ARGS__) = (type (*)(__VA_ARGS__))named(#name, "IBVERBS_" version); \
	(void)name
#define BUFFERS() \
	FUNCTION(void *, ibv_alloc_buf, "1.17", struct ibv_pd *, size_t, struct ibv_buf **); \
	FUNCTION(void, ibv_free_buf, "1.17", struct ibv_buf *); \
	FUNCTION(struct ibv_mr *, ibv_reg_buf_mr, "1.17", struct ibv_pd *, struct ibv_buf *, void *, size_t, int)
#define REG_MR_EX() FUNCTION(struct ibv_mr *, ibv_reg_mr_ex, "1.15", struct ibv_pd *, struct ibv_mr_init_attr *)

static void buffers(void)
{
	BUFFERS();
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_buf *buf = NULL;
	char *memory = ibv_alloc_buf(b.pd, 10000, &buf);
	CHECK(memory && buf && (uintptr_t)memory % 4096 == 0);
	for (int i = 0; i < 10000; i++)
		EQUAL(memory[i], 0);
	EQUAL(ibv_dealloc_pd(b.pd), EBUSY);
	struct ibv_mr *mr = ibv_reg_buf_mr(b.pd, buf, memory + 100, 1000, ALL_ACCESS);
	CHECK(mr && mr->addr == memory + 100 && mr->length == 1000);
	/* The region keeps the memory. */
	ibv_free_buf(buf);
	strcpy(a.memory, "buffered");
	struct ibv_sge sge = part(&a, 0, 9);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 200;
	wr.wr.rdma.rkey = mr->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(strcmp(memory + 200, "buffered"), 0);
	EQUAL(ibv_dereg_mr(mr), 0);
	errno = 0;
	ibv_free_buf(buf);
	EQUAL(errno, ENOENT);
	errno = 0;
	CHECK(!ibv_reg_buf_mr(b.pd, buf, memory, 8, 0) && errno == ENOENT);
}

static void regions_by_one_call(void)
{
	BUFFERS();
	REG_MR_EX();
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_mr_init_attr attr = { .length = 4096, .access = ALL_ACCESS, .comp_mask = MASK_ADDR, .addr = b.memory };
	struct ibv_mr *mr = ibv_reg_mr_ex(b.pd, &attr);
	CHECK(mr && mr->addr == b.memory);
	EQUAL(ibv_dereg_mr(mr), 0);
	attr.comp_mask |= MASK_IOVA;
	attr.iova = 0x777000;
	mr = ibv_reg_mr_ex(b.pd, &attr);
	struct ibv_sge sge = part(&a, 0, 9);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	strcpy(a.memory, "by iova!");
	wr.wr.rdma.remote_addr = 0x777000 + 16;
	wr.wr.rdma.rkey = mr->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(strcmp(b.memory + 16, "by iova!"), 0);
	/* A file. */
	int fd = memfd_create("file", 0);
	CHECK(!ftruncate(fd, 8192));
	attr = (struct ibv_mr_init_attr){ .length = 4096, .access = ALL_ACCESS, .fd = fd, .fd_offset = 4096,
		.comp_mask = MASK_FD | MASK_IOVA | MASK_FD_OFFSET };
	mr = ibv_reg_mr_ex(b.pd, &attr);
	CHECK(mr);
	wr.wr.rdma.remote_addr = 0;
	wr.wr.rdma.rkey = mr->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	char found[9];
	EQUAL(pread(fd, found, 9, 4096), 9);
	EQUAL(strcmp(found, "by iova!"), 0);
	/* A buffer. */
	struct ibv_buf *buf;
	char *memory = ibv_alloc_buf(b.pd, 4096, &buf);
	attr = (struct ibv_mr_init_attr){ .length = 4096, .access = ALL_ACCESS, .addr = memory, .buf = buf,
		.comp_mask = MASK_ADDR | MASK_BUF };
	mr = ibv_reg_mr_ex(b.pd, &attr);
	CHECK(mr);
	EQUAL(ibv_dereg_mr(mr), 0);
	ibv_free_buf(buf);
}

static void asked_wrongly(void)
{
	BUFFERS();
	REG_MR_EX();
	FUNCTION(int, ibv_query_port_speed, "1.16", struct ibv_context *, uint32_t, uint64_t *);
	FUNCTION(void *, ibv_alloc_dmah, "1.15", struct ibv_context *, void *);
	FUNCTION(int, ibv_dealloc_dmah, "1.15", void *);
	FUNCTION(int, ibv_dm_export_dmabuf_fd, "1.16", struct ibv_dm *);
	struct side s = side_on(open_first());
	struct ibv_buf *buf = (void *)1;
	CHECK(!ibv_alloc_buf(s.pd, 0, &buf) && errno == EINVAL);
	CHECK(!ibv_alloc_buf(s.pd, 8, NULL) && errno == EINVAL);
	CHECK(!ibv_alloc_buf(NULL, 8, &buf) && errno == EINVAL);
	CHECK(!ibv_alloc_buf(s.pd, SIZE_MAX / 2, &buf) && errno == ENOMEM);
	CHECK(buf == (void *)1);
	char *memory = ibv_alloc_buf(s.pd, 4096, &buf);
	CHECK(memory);
	CHECK(!ibv_reg_buf_mr(s.pd, buf, memory, 4097, 0) && errno == EINVAL);
	CHECK(!ibv_reg_buf_mr(s.pd, buf, memory - 1, 8, 0) && errno == EINVAL);
	CHECK(!ibv_reg_buf_mr(s.pd, buf, memory, 0, 0) && errno == EINVAL);
	CHECK(!ibv_reg_buf_mr(s.pd, buf, memory, 8, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	/* A region is of the domain that the buffer was allocated in, and of no other view of it either. */
	struct ibv_pd *others[] = { ibv_alloc_pd(s.context),
		ibv_alloc_parent_domain(s.context, &(struct ibv_parent_domain_init_attr){ .pd = s.pd }) };
	for (int i = 0; i < 2; i++) {
		CHECK(others[i] && !ibv_reg_buf_mr(others[i], buf, memory, 8, 0) && errno == EINVAL);
		EQUAL(ibv_dealloc_pd(others[i]), 0);
	}
	struct ibv_mr_init_attr attr = { .length = 8, .addr = s.memory, .fd = -1 };
	CHECK(!ibv_reg_mr_ex(s.pd, NULL) && errno == EINVAL);
	CHECK(!ibv_reg_mr_ex(s.pd, &attr) && errno == EINVAL);
	uint64_t wrong[][2] = { { MASK_FD, EINVAL }, { MASK_ADDR | MASK_FD_OFFSET, EINVAL }, { MASK_BUF, EINVAL },
		{ MASK_FD | MASK_IOVA, EBADF }, { MASK_ADDR | MASK_DMAH, EOPNOTSUPP }, { 1 << 9, EOPNOTSUPP } };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		attr.comp_mask = wrong[i][0];
		errno = 0;
		CHECK(!ibv_reg_mr_ex(s.pd, &attr));
		EQUAL(errno, wrong[i][1]);
	}
	uint64_t speed = 0;
	EQUAL(ibv_query_port_speed(s.context, 1, &speed), 0);
	EQUAL(speed, 1000);
	EQUAL(ibv_query_port_speed(s.context, 2, &speed), EINVAL);
	EQUAL(ibv_query_port_speed(s.context, 257, &speed), EINVAL);
	EQUAL(ibv_query_port_speed(s.context, 1, NULL), EINVAL);
	CHECK(!ibv_alloc_dmah(s.context, NULL) && errno == EOPNOTSUPP);
	EQUAL(ibv_dealloc_dmah(NULL), EOPNOTSUPP);
	errno = 0;
	EQUAL(ibv_dm_export_dmabuf_fd(NULL), -1);
	EQUAL(errno, EOPNOTSUPP);
	/* A context closes with what is left in it. */
	EQUAL(ibv_close_device(s.context), 0);
}

static const struct test tests[] = {
	TEST(buffers),
	TEST(regions_by_one_call),
	TEST(asked_wrongly),
};
MAIN(tests)
