/* Prints the sizes and offsets that a C compiler makes of the headers. */
#include <stddef.h>
#include <stdio.h>
#include <infiniband/verbs.h>
#include <infiniband/sa.h>
#include <rdma/rdma_cma.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#define SIZE(type) printf(#type " - %zu\n", sizeof(struct type))
#define OFFSET(type, field) printf(#type " " #field " %zu\n", offsetof(struct type, field))

int main(void)
{
#include LAYOUT
	return 0;
}
