/* Memory that is not simply the program's: null regions, device memory, memory on demand, files; and objects
 * under another handle. */
#define _GNU_SOURCE
#include "harness.h"

/* The same over UDP. */
#define BY_WIRE(name) \
	static void name##_by_wire(void) { setenv("IRONVERBS_PATH", "wire", 1); name(); }

static struct ibv_send_wr list_of(struct ibv_sge *list, int count, enum ibv_wr_opcode opcode)
{
	struct ibv_send_wr wr = send_of(list, opcode);
	wr.num_sge = count;
	return wr;
}

static void null_regions(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_mr *null_a = ibv_alloc_null_mr(a.pd), *null_b = ibv_alloc_null_mr(b.pd);
	CHECK(null_a && null_b && null_a->pd == a.pd && null_a->context == a.context);
	CHECK(null_a->lkey && null_a->lkey != null_b->lkey);
	for (size_t size = 64; size <= 262144; size *= 64) {
		memset(a.memory, 7, 3 * size);
		memset(b.memory, 9, 3 * size);
		/* It reads as zeros... */
		struct ibv_sge list[3] = { part(&a, 0, size), { 12345, size, null_a->lkey }, part(&a, size, size) };
		struct ibv_send_wr wr = list_of(list, 3, IBV_WR_RDMA_WRITE);
		remote(&wr, &b, 0);
		EQUAL(post(&a, &wr), 0);
		expect(a.cq, 1, IBV_WC_SUCCESS);
		for (size_t i = 0; i < 3 * size; i++)
			EQUAL(b.memory[i], i / size == 1 ? 0 : 7);
		/* ... and forgets what is written: by READ, and by a receive. */
		memset(b.memory, 5, 3 * size);
		wr.opcode = IBV_WR_RDMA_READ;
		EQUAL(post(&a, &wr), 0);
		expect(a.cq, 1, IBV_WC_SUCCESS);
		for (size_t i = 0; i < 3 * size; i++)
			EQUAL(a.memory[i], i < 2 * size ? 5 : 7);
		struct ibv_sge into[2] = { { 0, size, null_b->lkey }, part(&b, 0, 2 * size) };
		struct ibv_recv_wr recv = { .wr_id = 9, .sg_list = into, .num_sge = 2 }, *bad;
		EQUAL(ibv_post_recv(b.qp, &recv, &bad), 0);
		struct ibv_sge whole = part(&a, 0, 3 * size);
		wr = send_of(&whole, IBV_WR_SEND);
		EQUAL(post(&a, &wr), 0);
		expect(a.cq, 1, IBV_WC_SUCCESS);
		EQUAL(expect(b.cq, 9, IBV_WC_SUCCESS).byte_len, 3 * size);
		EQUAL(memcmp(b.memory, a.memory + size, 2 * size), 0);
	}
	EQUAL(ibv_rereg_mr(null_a, IBV_REREG_MR_CHANGE_PD, b.pd, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	/* Nobody reaches anything by its rkey, and it belongs to its domain. */
	struct ibv_sge sge = part(&a, 0, 8);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	wr.wr.rdma.rkey = null_b->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
	EQUAL(ibv_dealloc_pd(a.pd), EBUSY);
	EQUAL(ibv_dereg_mr(null_a), 0);
	EQUAL(ibv_dereg_mr(null_b), 0);
}
BY_WIRE(null_regions)

static void null_region_of_another_domain(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_mr *foreign = ibv_alloc_null_mr(b.pd);
	struct ibv_sge sge = { 0, 8, foreign->lkey };
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	remote(&wr, &b, 0);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_LOC_PROT_ERR);
}

static void device_memory(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_dm *dm = ibv_alloc_dm(b.context, &(struct ibv_alloc_dm_attr){ .length = 8192, .log_align_req = 6 });
	CHECK(dm && dm->context == b.context && dm->comp_mask == IBV_DM_MASK_HANDLE);
	unsigned access = IBV_ACCESS_ZERO_BASED | ALL_ACCESS;
	struct ibv_mr *mr = ibv_reg_dm_mr(b.pd, dm, 4096, 4096, access);
	CHECK(mr && mr->length == 4096 && !mr->addr);
	strcpy(a.memory, "into the device");
	struct ibv_sge sge = part(&a, 0, 16);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	wr.wr.rdma.remote_addr = 8;
	wr.wr.rdma.rkey = mr->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	char back[16];
	EQUAL(ibv_memcpy_from_dm(back, dm, 4096 + 8, 16), 0);
	EQUAL(strcmp(back, "into the device"), 0);
	/* Atomics on it, and back by READ and by a SEND of it. */
	uint64_t five = 5;
	EQUAL(ibv_memcpy_to_dm(dm, 4096, &five, 8), 0);
	sge.length = 8;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.remote_addr = 0;
	wr.wr.atomic.rkey = mr->rkey;
	wr.wr.atomic.compare_add = 3;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(*(uint64_t *)a.memory, 5);
	EQUAL(ibv_memcpy_from_dm(&five, dm, 4096, 8), 0);
	EQUAL(five, 8);
	EQUAL(post_recv(&a, 4, 0, 64), 0);
	struct ibv_sge of_dm = { 8, 16, mr->lkey };
	wr = send_of(&of_dm, IBV_WR_SEND);
	EQUAL(post(&b, &wr), 0);
	expect(a.cq, 4, IBV_WC_SUCCESS);
	EQUAL(strcmp(a.memory, "into the device"), 0);
	EQUAL(ibv_free_dm(dm), EBUSY);
	/* Offsets are of the region: its end is not the memory's. */
	sge.length = 16;
	wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	wr.wr.rdma.remote_addr = 4088;
	wr.wr.rdma.rkey = mr->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
	EQUAL(ibv_dereg_mr(mr), 0);
	EQUAL(ibv_free_dm(dm), 0);
}
BY_WIRE(device_memory)

static void device_memory_asked_wrongly(void)
{
	struct side s = side_on(open_first());
	struct ibv_device_attr_ex attr;
	EQUAL(ibv_query_device_ex(s.context, NULL, &attr), 0);
	CHECK(attr.max_dm_size);
	struct ibv_alloc_dm_attr wrong[] = { { .length = 0 }, { .length = attr.max_dm_size + 1 },
		{ .length = SIZE_MAX }, { .length = 64, .log_align_req = 40 }, { .length = 64, .comp_mask = 1 } };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		errno = 0;
		CHECK(!ibv_alloc_dm(s.context, &wrong[i]) && errno == EINVAL);
	}
	struct ibv_dm *dm = ibv_alloc_dm(s.context, &(struct ibv_alloc_dm_attr){ .length = 100 });
	struct ibv_dm *rest = ibv_alloc_dm(s.context, &(struct ibv_alloc_dm_attr){ .length = attr.max_dm_size - 100 });
	CHECK(dm && rest);
	CHECK(!ibv_alloc_dm(s.context, &(struct ibv_alloc_dm_attr){ .length = 4 }) && errno == ENOMEM);
	char bytes[128] = "unchanged";
	EQUAL(ibv_memcpy_to_dm(dm, 0, bytes, 12), 0);
	uint64_t bad[][2] = { { 3, 4 }, { 4, 3 }, { 104, 4 }, { 0, 104 }, { UINT64_MAX - 3, 8 } };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		EQUAL(ibv_memcpy_to_dm(dm, bad[i][0], bytes + 16, bad[i][1]), EINVAL);
		EQUAL(ibv_memcpy_from_dm(bytes, dm, bad[i][0], bad[i][1]), EINVAL);
	}
	EQUAL(ibv_memcpy_to_dm(dm, 0, NULL, 4), EINVAL);
	EQUAL(strcmp(bytes, "unchanged"), 0);
	unsigned zero = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;
	CHECK(!ibv_reg_dm_mr(s.pd, dm, 0, 101, zero) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(s.pd, dm, 101, 0, zero) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(s.pd, dm, 0, 100, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_dm_mr(s.pd, dm, 0, 100, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	EQUAL(ibv_free_dm(dm), 0);
	EQUAL(ibv_free_dm(dm), ENOENT);
	EQUAL(ibv_free_dm(rest), 0);
}

static void memory_on_demand(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_device_attr_ex attr;
	EQUAL(ibv_query_device_ex(a.context, NULL, &attr), 0);
	EQUAL(attr.odp_caps.general_caps, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
	/* All there is, and all there will be. */
	unsigned access = ALL_ACCESS | IBV_ACCESS_ON_DEMAND;
	struct ibv_mr *all_a = ibv_reg_mr(a.pd, NULL, SIZE_MAX, access);
	struct ibv_mr *all_b = ibv_reg_mr(b.pd, NULL, SIZE_MAX, access);
	CHECK(all_a && all_b);
	size_t size = 1 << 20;
	char *from = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(from, 3, size);
	struct ibv_sge sge = { (uintptr_t)from, size, all_a->lkey };
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	wr.wr.rdma.remote_addr = (uintptr_t)to;
	wr.wr.rdma.rkey = all_b->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(memcmp(from, to, size), 0);
	/* A range without memory, which comes later. */
	CHECK(!munmap(to, size));
	CHECK(!ibv_reg_mr(b.pd, to, size, ALL_ACCESS) && errno == EFAULT);
	struct ibv_mr *later = ibv_reg_mr(b.pd, to, size, access);
	CHECK(later);
	struct ibv_sge advice = { (uintptr_t)to, size, later->lkey };
	EQUAL(ibv_advise_mr(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &advice, 1), EFAULT);
	CHECK(mmap(to, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == to);
	EQUAL(ibv_advise_mr(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &advice, 1), 0);
	EQUAL(ibv_advise_mr(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &advice, 1), 0);
	wr.wr.rdma.rkey = later->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(memcmp(from, to, size), 0);
	/* Gone again, and nobody dies of it. */
	CHECK(!munmap(to, size));
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
}
BY_WIRE(memory_on_demand)

static void advice_that_is_wrong(void)
{
	struct side s = side_on(open_first());
	struct ibv_mr *readable = ibv_reg_mr(s.pd, s.memory, 4096, IBV_ACCESS_ON_DEMAND);
	struct ibv_pd *other = ibv_alloc_pd(s.context);
	struct ibv_sge sge = { (uintptr_t)s.memory, 4096, readable->lkey };
	EQUAL(ibv_advise_mr(s.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), 0);
	EQUAL(ibv_advise_mr(s.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, &sge, 1), 0);
	EQUAL(ibv_advise_mr(s.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1), EPERM);
	EQUAL(ibv_advise_mr(s.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 2, &sge, 1), EINVAL);
	EQUAL(ibv_advise_mr(s.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0), EINVAL);
	EQUAL(ibv_advise_mr(s.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 1), EINVAL);
	EQUAL(ibv_advise_mr(s.pd, 77, 0, &sge, 1), EOPNOTSUPP);
	EQUAL(ibv_advise_mr(other, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
	sge.length = 4097;
	EQUAL(ibv_advise_mr(s.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
	sge = (struct ibv_sge){ (uintptr_t)s.memory, 8, 0xdead };
	EQUAL(ibv_advise_mr(s.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
}

/* A dma-buf is a file that can be mapped. */
static void files_as_regions(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	int fd = memfd_create("buffer", 0);
	CHECK(fd >= 0 && !ftruncate(fd, 16384));
	char *view = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(b.pd, 4100, 8000, 0x10000, fd, ALL_ACCESS);
	CHECK(mr && mr->length == 8000);
	strcpy(a.memory, "by way of a file");
	struct ibv_sge sge = part(&a, 0, 17);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	wr.wr.rdma.remote_addr = 0x10000 + 100;
	wr.wr.rdma.rkey = mr->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(strcmp(view + 4200, "by way of a file"), 0);
	int closed = dup(fd);
	close(closed);
	CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 16385, 0, fd, ALL_ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(b.pd, UINT64_MAX, 2, 0, fd, ALL_ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 0, 0, fd, ALL_ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 8, 0, fd, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 8, 0, -1, ALL_ACCESS) && errno == EBADF);
	CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 8, 0, closed, ALL_ACCESS) && errno == EBADF);
	EQUAL(ibv_dereg_mr(mr), 0);
}

static void objects_imported(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_dm *dm = ibv_alloc_dm(b.context, &(struct ibv_alloc_dm_attr){ .length = 64 });
	int fd = dup(b.context->cmd_fd);
	struct ibv_context *again = ibv_import_device(fd);
	CHECK(again && again != b.context && again->cmd_fd == fd && again->device == b.context->device);
	struct ibv_pd *pd = ibv_import_pd(again, b.pd->handle);
	CHECK(pd && pd->context == again);
	struct ibv_mr *mr = ibv_import_mr(pd, b.mr->handle);
	CHECK(mr && !mr->addr && mr->lkey == b.mr->lkey && mr->rkey == b.mr->rkey && mr->length == MEMORY);
	struct ibv_dm *memory = ibv_import_dm(again, dm->handle);
	uint32_t word = 77, found = 0;
	CHECK(memory);
	EQUAL(ibv_memcpy_to_dm(dm, 8, &word, 4), 0);
	EQUAL(ibv_memcpy_from_dm(&found, memory, 8, 4), 0);
	EQUAL(found, 77);
	/* What is made of the imported works together with the rest. */
	struct side c = { .context = again, .pd = pd, .mr = mr, .memory = b.memory, .gid = b.gid };
	c.cq = ibv_create_cq(again, 16, NULL, NULL, 0);
	make_qp(&c, IBV_QPT_RC);
	struct side d = side_on(a.context);
	make_qp(&d, IBV_QPT_RC);
	connect_to(&c, &d);
	connect_to(&d, &c);
	strcpy(d.memory, "imported");
	struct ibv_sge sge = part(&d, 0, 9);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	remote(&wr, &b, 32);
	wr.wr.rdma.rkey = mr->rkey;
	EQUAL(post(&d, &wr), 0);
	expect(d.cq, 1, IBV_WC_SUCCESS);
	EQUAL(strcmp(b.memory + 32, "imported"), 0);
	/* The handles go one by one, the objects with the last. */
	ibv_unimport_mr(mr);
	ibv_unimport_dm(memory);
	EQUAL(ibv_destroy_qp(c.qp), 0);
	ibv_unimport_pd(pd);
	EQUAL(ibv_close_device(again), 0);
	CHECK(fcntl(fd, F_GETFD) < 0);
	EQUAL(post(&a, &(struct ibv_send_wr){ .wr_id = 3, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }), 0);
	expect(a.cq, 3, IBV_WC_SUCCESS);
	EQUAL(ibv_free_dm(dm), 0);
}

static void the_first_context_closes_first(void)
{
	struct side s = side_on(open_first());
	struct ibv_context *again = ibv_import_device(dup(s.context->cmd_fd));
	struct ibv_pd *pd = ibv_import_pd(again, s.pd->handle);
	struct ibv_mr *mr = ibv_import_mr(pd, s.mr->handle);
	CHECK(again && pd && mr);
	EQUAL(ibv_close_device(s.context), 0);
	struct ibv_device_attr attr;
	EQUAL(ibv_query_device(again, &attr), 0);
	struct ibv_mr *more = ibv_reg_mr(pd, s.memory, 64, 0);
	CHECK(more);
	EQUAL(ibv_dealloc_pd(pd), EBUSY);
	EQUAL(ibv_close_device(again), 0);
}

static void imports_asked_wrongly(void)
{
	struct side s = side_on(open_first());
	struct ibv_context *other = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(s.context);
	CHECK(!ibv_import_device(-1) && errno == EBADF);
	CHECK(!ibv_import_device(0) && errno == EINVAL);
	CHECK(fcntl(0, F_GETFD) >= 0);
	CHECK(!ibv_import_pd(s.context, 0xffffffff) && errno == ENOENT);
	CHECK(!ibv_import_pd(other, s.pd->handle) && errno == EINVAL);
	CHECK(!ibv_import_mr(pd, s.mr->handle) && errno == EINVAL);
	CHECK(!ibv_import_mr(s.pd, 12345) && errno == ENOENT);
	CHECK(!ibv_import_dm(s.context, 0) && errno == ENOENT);
	struct ibv_dm *dm = ibv_alloc_dm(s.context, &(struct ibv_alloc_dm_attr){ .length = 64 });
	CHECK(!ibv_import_dm(other, dm->handle) && errno == EINVAL);
}

/* Memory for a domain's queues, with a count of what is out by type, and of what was asked. */
struct heap {
	struct ibv_pd *pd;
	enum { OURS, DEFAULT, NONE, ASKEW } how;
	int asked[8], out[8];
	struct { char *start; size_t size; } blocks[64];
};

static void *heap_alloc(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type)
{
	struct heap *heap = context;
	CHECK(type >> 32 == 0 && type < 8 && size && alignment && !(alignment & (alignment - 1)));
	CHECK(!heap->pd || heap->pd == pd);
	heap->asked[type]++;
	if (heap->how == NONE)
		return NULL;
	if (heap->how == DEFAULT)
		return IBV_ALLOCATOR_USE_DEFAULT;
	char *memory;
	EQUAL(posix_memalign((void **)&memory, alignment, size + 2 * alignment), 0);
	memset(memory, 0, size);
	memset(memory + size, 0xa5, 2 * alignment);
	heap->out[type]++;
	for (size_t i = 0; i < 64; i++)
		if (!heap->blocks[i].start) {
			heap->blocks[i].start = memory;
			heap->blocks[i].size = size;
			return heap->how == ASKEW ? memory + 1 : memory;
		}
	CHECK(!"so many blocks");
	return NULL;
}

static void heap_free(struct ibv_pd *pd, void *context, void *memory, uint64_t type)
{
	struct heap *heap = context;
	char *start = (char *)memory - (heap->how == ASKEW);
	CHECK(!heap->pd || heap->pd == pd);
	heap->out[type]--;
	for (size_t i = 0; i < 64; i++)
		if (heap->blocks[i].start == start) {
			/* Nothing was written behind it; nothing of it is used any more. */
			for (int j = 0; j < 16; j++)
				EQUAL((unsigned char)start[heap->blocks[i].size + j], 0xa5);
			memset(start, 0xee, heap->blocks[i].size);
			free(start);
			heap->blocks[i].start = NULL;
			return;
		}
	CHECK(!"freed what was given");
}

static struct ibv_pd *parent_with(struct ibv_pd *pd, struct heap *heap)
{
	struct ibv_parent_domain_init_attr attr = { .pd = pd,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = heap_alloc, .free = heap_free, .pd_context = heap };
	struct ibv_pd *parent = ibv_alloc_parent_domain(pd->context, &attr);
	CHECK(parent);
	heap->pd = parent;
	return parent;
}

/* Whether the queue's memory has those eight bytes. */
static int heap_has(struct heap *heap, uint64_t bytes)
{
	for (size_t i = 0; i < 64; i++)
		for (size_t at = 0; heap->blocks[i].start && at + 8 <= heap->blocks[i].size; at += 4)
			if (!memcmp(heap->blocks[i].start + at, &bytes, 8))
				return 1;
	return 0;
}

/* Read in either way. */
static void next_is(struct ibv_cq *cq, struct ibv_cq_ex *ex, uint64_t id)
{
	if (!ex) {
		expect(cq, id, IBV_WC_SUCCESS);
		return;
	}
	while (ibv_start_poll(ex, &(struct ibv_poll_cq_attr){ 0 }))
		;
	EQUAL(ex->wr_id, id);
	EQUAL(ex->status, IBV_WC_SUCCESS);
	EQUAL(ibv_next_poll(ex), ENOENT);
	ibv_end_poll(ex);
}

enum { SENDS = 1, RECEIVES, SHARED, COMPLETIONS }; /* infiniband/ironverbs.h */

static void queues_in_memory_of_the_program(void)
{
	struct heap heap = { 0 };
	struct side a = side_on(open_first()), b = side_on(a.context);
	struct ibv_pd *base = a.pd, *parent = parent_with(base, &heap);
	EQUAL(ibv_dereg_mr(a.mr), 0);
	EQUAL(ibv_destroy_cq(a.cq), 0);
	/* Regions and address handles have no queues. */
	a.pd = parent;
	a.mr = ibv_reg_mr(parent, a.memory, 4096, ALL_ACCESS);
	CHECK(a.mr && !heap.asked[SENDS]);
	struct ibv_cq_init_attr_ex of_cq = { .cqe = 100, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent };
	struct ibv_cq_ex *ex = ibv_create_cq_ex(a.context, &of_cq);
	CHECK(ex && heap.out[COMPLETIONS] == 1);
	a.cq = ibv_cq_ex_to_cq(ex);
	make_qp(&a, IBV_QPT_RC);
	CHECK(heap.out[SENDS] == 1 && heap.out[RECEIVES] == 1);
	make_qp(&b, IBV_QPT_RC);
	connect_to(&a, &b);
	connect_to(&b, &a);
	/* The requests and completions are there. */
	struct ibv_sge sge = part(&a, 0, 16);
	for (uint64_t round = 0; round < 300; round++) {
		uint64_t id = 0x1122334455660000 + round;
		EQUAL(post_recv(&a, id + 0x1000, 64, 64), 0);
		EQUAL(post_recv(&b, 2, 64, 64), 0);
		CHECK(heap_has(&heap, id + 0x1000));
		struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
		wr.wr_id = id;
		if (round % 2)
			wr.send_flags |= IBV_SEND_INLINE;
		EQUAL(post(&a, &wr), 0);
		CHECK(heap_has(&heap, id));
		expect(b.cq, 2, IBV_WC_SUCCESS);
		next_is(a.cq, round % 3 ? ex : NULL, id);
		struct ibv_sge back = part(&b, 0, 16);
		wr = send_of(&back, IBV_WR_SEND);
		EQUAL(post(&b, &wr), 0);
		next_is(a.cq, round % 3 ? ex : NULL, id + 0x1000);
		expect(b.cq, 1, IBV_WC_SUCCESS);
	}
	/* Another size is other memory, with what is in it. */
	EQUAL(post_recv(&b, 2, 64, 64), 0);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	wr.wr_id = 77;
	EQUAL(post(&a, &wr), 0);
	expect(b.cq, 2, IBV_WC_SUCCESS);
	EQUAL(ibv_resize_cq(a.cq, 1000), 0);
	CHECK(heap.asked[COMPLETIONS] == 2 && heap.out[COMPLETIONS] == 1);
	expect(a.cq, 77, IBV_WC_SUCCESS);
	heap.how = NONE;
	EQUAL(ibv_resize_cq(a.cq, 2000), ENOMEM);
	EQUAL(ibv_dealloc_pd(parent), EBUSY);
	EQUAL(ibv_destroy_qp(a.qp), 0);
	CHECK(!heap.out[SENDS] && !heap.out[RECEIVES]);
	EQUAL(ibv_destroy_cq(a.cq), 0);
	CHECK(!heap.out[COMPLETIONS]);
	EQUAL(ibv_dereg_mr(a.mr), 0);
	EQUAL(ibv_dealloc_pd(parent), 0);
	EQUAL(ibv_dealloc_pd(base), 0);
}

static void queues_in_memory_of_the_program_by_wire(void)
{
	setenv("IRONVERBS_PATH", "wire", 1);
	queues_in_memory_of_the_program();
}

static void shared_receives_in_memory_of_the_program(void)
{
	struct heap heap = { 0 };
	struct side a = side_on(open_first());
	struct ibv_pd *parent = parent_with(a.pd, &heap);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 10, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(parent, &init);
	CHECK(srq && heap.out[SHARED] == 1);
	struct ibv_sge sge = part(&a, 0, 8);
	struct ibv_recv_wr wr = { .wr_id = 0x1020304050607080, .sg_list = &sge, .num_sge = 1 }, *bad;
	EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
	CHECK(heap_has(&heap, wr.wr_id));
	struct ibv_srq_attr attr = { .max_wr = 20 };
	EQUAL(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
	CHECK(heap.asked[SHARED] == 2 && heap.out[SHARED] == 1 && heap_has(&heap, wr.wr_id));
	/* A queue pair that takes its receives there has none of its own. */
	struct ibv_qp_init_attr of_qp = { .send_cq = a.cq, .recv_cq = a.cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(parent, &of_qp);
	CHECK(qp && heap.out[SENDS] == 1 && !heap.asked[RECEIVES]);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_srq(srq), 0);
	CHECK(!heap.out[SHARED] && !heap.out[SENDS]);
}

static void allocators_that_refuse(void)
{
	struct heap heap = { .how = NONE };
	struct side a = side_on(open_first());
	struct ibv_pd *parent = parent_with(a.pd, &heap);
	struct ibv_qp_init_attr of_qp = { .send_cq = a.cq, .recv_cq = a.cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_cq_init_attr_ex of_cq = { .cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent };
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	for (heap.how = NONE; heap.how <= ASKEW; heap.how++) {
		CHECK(!ibv_create_qp(parent, &of_qp) && errno == ENOMEM);
		CHECK(!ibv_create_cq_ex(a.context, &of_cq) && errno == ENOMEM);
		CHECK(!ibv_create_srq(parent, &of_srq) && errno == ENOMEM);
		for (int i = 0; i < 8; i++)
			EQUAL(heap.out[i], 0);
	}
	/* The library's own, when the allocator says so: nothing is freed by the program's. */
	heap.how = DEFAULT;
	struct ibv_qp *qp = ibv_create_qp(parent, &of_qp);
	struct ibv_cq_ex *cq = ibv_create_cq_ex(a.context, &of_cq);
	struct ibv_srq *srq = ibv_create_srq(parent, &of_srq);
	CHECK(qp && cq && srq);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	EQUAL(ibv_destroy_srq(srq), 0);
	for (int i = 0; i < 8; i++)
		EQUAL(heap.out[i], 0);
	/* What is left goes when the context closes. */
	heap.how = OURS;
	CHECK(ibv_create_qp(parent, &of_qp) && ibv_create_cq_ex(a.context, &of_cq) && ibv_create_srq(parent, &of_srq));
	EQUAL(ibv_close_device(a.context), 0);
	for (int i = 0; i < 8; i++)
		EQUAL(heap.out[i], 0);
}

static void parent_domains(void)
{
	struct ibv_context *context = open_first();
	struct side a = side_on(context), b = side_on(context);
	struct ibv_td *td = ibv_alloc_td(context, &(struct ibv_td_init_attr){ 0 });
	CHECK(td && td->context == context);
	struct ibv_parent_domain_init_attr attr = { .pd = a.pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	CHECK(parent && parent->context == context);
	struct ibv_cq_init_attr_ex cq = { .cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent };
	struct ibv_cq_ex *ex = ibv_create_cq_ex(context, &cq);
	CHECK(ex);
	cq.parent_domain = a.pd;
	CHECK(!ibv_create_cq_ex(context, &cq) && errno == EINVAL);
	/* Interchangeable with what it is made of: a QP of the one, a region of the other. */
	struct side c = { .context = context, .pd = parent, .cq = a.cq, .mr = a.mr, .memory = a.memory, .gid = a.gid };
	make_qp(&c, IBV_QPT_RC);
	CHECK(c.qp->pd == parent);
	make_qp(&b, IBV_QPT_RC);
	connect_to(&c, &b);
	connect_to(&b, &c);
	strcpy(c.memory, "of a parent");
	struct ibv_sge sge = part(&c, 0, 12);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	remote(&wr, &b, 0);
	EQUAL(post(&c, &wr), 0);
	expect(c.cq, 1, IBV_WC_SUCCESS);
	wr = send_of(&sge, IBV_WR_RDMA_READ);
	sge = part(&b, 64, 12);
	remote(&wr, &c, 0);
	EQUAL(post(&b, &wr), 0);
	expect(b.cq, 1, IBV_WC_SUCCESS);
	EQUAL(strcmp(b.memory + 64, "of a parent"), 0);
	/* Each waits for its users. */
	EQUAL(ibv_dealloc_td(td), EBUSY);
	EQUAL(ibv_dealloc_pd(parent), EBUSY);
	EQUAL(ibv_destroy_qp(c.qp), 0);
	EQUAL(ibv_dealloc_pd(parent), EBUSY);
	EQUAL(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
	EQUAL(ibv_dereg_mr(a.mr), 0);
	EQUAL(ibv_dealloc_pd(a.pd), EBUSY);
	EQUAL(ibv_dealloc_pd(parent), 0);
	EQUAL(ibv_dealloc_td(td), 0);
	EQUAL(ibv_dealloc_td(td), ENOENT);
	EQUAL(ibv_dealloc_pd(a.pd), 0);
}

static void domains_asked_wrongly(void)
{
	struct ibv_context *context = open_first(), *other = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_td *td = ibv_alloc_td(other, &(struct ibv_td_init_attr){ 0 });
	CHECK(!ibv_alloc_td(context, NULL) && errno == EINVAL);
	CHECK(!ibv_alloc_td(context, &(struct ibv_td_init_attr){ .comp_mask = 1 }) && errno == EINVAL);
	CHECK(!ibv_alloc_parent_domain(context, NULL) && errno == EINVAL);
	struct ibv_parent_domain_init_attr attr = { .pd = pd };
	CHECK(!ibv_alloc_parent_domain(other, &attr) && errno == EINVAL);
	attr.td = td;
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
	attr.td = NULL;
	attr.comp_mask = 8;
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
	attr = (struct ibv_parent_domain_init_attr){ 0 };
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
	/* A context closes with all that is left in it. */
	attr.pd = pd;
	CHECK(ibv_alloc_parent_domain(context, &attr));
	EQUAL(ibv_close_device(context), 0);
	EQUAL(ibv_close_device(other), 0);
}

static const struct test tests[] = {
	TEST(null_regions),
	TEST(null_regions_by_wire),
	TEST(null_region_of_another_domain),
	TEST(device_memory),
	TEST(device_memory_by_wire),
	TEST(device_memory_asked_wrongly),
	TEST(memory_on_demand),
	TEST(memory_on_demand_by_wire),
	TEST(advice_that_is_wrong),
	TEST(files_as_regions),
	TEST(objects_imported),
	TEST(the_first_context_closes_first),
	TEST(imports_asked_wrongly),
	TEST(parent_domains),
	TEST(queues_in_memory_of_the_program),
	TEST(queues_in_memory_of_the_program_by_wire),
	TEST(shared_receives_in_memory_of_the_program),
	TEST(allocators_that_refuse),
	TEST(domains_asked_wrongly),
};
MAIN(tests)
