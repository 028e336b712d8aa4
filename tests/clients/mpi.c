/* An MPI program that checks what it receives: a ping-pong of every size between neighbours, and collective
 * operations over all ranks. Prints "rank N of M: right in net:[...]" on each rank, with its network namespace. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int rank, ranks;

static void fail(const char *what, long size)
{
	fprintf(stderr, "rank %d: wrong data in %s of %ld\n", rank, what, size);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char byte_of(int from, int round, long at)
{
	return (unsigned char)(from * 31 + round * 7 + at % 251);
}

static void pingpong(long size, int rounds)
{
	unsigned char *buffer = malloc(size);
	int peer = rank ^ 1;

	if (!buffer)
		fail("malloc", size);
	for (int round = 0; round < rounds && peer < ranks; round++) {
		for (int turn = 0; turn < 2; turn++) {
			int from = (rank & ~1) + turn;

			if (from == rank) {
				for (long at = 0; at < size; at++)
					buffer[at] = byte_of(rank, round, at);
				MPI_Send(buffer, (int)size, MPI_BYTE, peer, round, MPI_COMM_WORLD);
			} else {
				MPI_Recv(buffer, (int)size, MPI_BYTE, peer, round, MPI_COMM_WORLD,
					 MPI_STATUS_IGNORE);
				for (long at = 0; at < size; at++)
					if (buffer[at] != byte_of(peer, round, at))
						fail("pingpong", size);
			}
		}
	}
	free(buffer);
}

static void collectives(int count)
{
	long *own = malloc(count * sizeof(long));
	long *sum = malloc(count * sizeof(long));
	long *all = malloc((size_t)count * ranks * sizeof(long));

	if (!own || !sum || !all)
		fail("malloc", count);
	for (int at = 0; at < count; at++)
		own[at] = (long)(rank + 1) * (at + 1);
	MPI_Allreduce(own, sum, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int at = 0; at < count; at++)
		if (sum[at] != (long)ranks * (ranks + 1) / 2 * (at + 1))
			fail("allreduce", count);
	MPI_Allgather(own, count, MPI_LONG, all, count, MPI_LONG, MPI_COMM_WORLD);
	for (long at = 0; at < (long)count * ranks; at++)
		if (all[at] != (at / count + 1) * (at % count + 1))
			fail("allgather", count);
	MPI_Alltoall(all, count / ranks, MPI_LONG, sum, count / ranks, MPI_LONG, MPI_COMM_WORLD);
	MPI_Bcast(own, count, MPI_LONG, 0, MPI_COMM_WORLD);
	for (int at = 0; at < count; at++)
		if (own[at] != at + 1)
			fail("bcast", count);
	free(own);
	free(sum);
	free(all);
}

/* Each rank puts a word into its neighbour's window and adds one to a counter on rank 0. */
static void one_sided(void)
{
	long window[2] = {0, 0}, word = 1000 + rank, one = 1, before;
	MPI_Win win;

	MPI_Win_create(window, sizeof(window), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	MPI_Win_fence(0, win);
	MPI_Put(&word, 1, MPI_LONG, (rank + 1) % ranks, 0, 1, MPI_LONG, win);
	MPI_Win_fence(0, win);
	if (window[0] != 1000 + (rank + ranks - 1) % ranks)
		fail("put", window[0]);
	MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 1, MPI_SUM, win);
	MPI_Win_fence(0, win);
	if (before < 0 || before >= ranks || (rank == 0 && window[1] != ranks))
		fail("fetch_and_op", before);
	MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
	char place[64] = "";

	if (readlink("/proc/self/ns/net", place, sizeof(place) - 1) < 0)
		return 1;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (long size = 1; size <= 1L << 20; size *= 8)
		pingpong(size, size < 1 << 16 ? 20 : 5);
	pingpong(1 << 20, 5);
	for (int count = ranks; count <= 1 << 16; count *= 16)
		collectives(count);
	one_sided();
	MPI_Barrier(MPI_COMM_WORLD);
	printf("rank %d of %d: right in %s\n", rank, ranks, place);
	MPI_Finalize();
	return 0;
}
