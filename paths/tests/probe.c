/* Calls every path function; run with the library preloaded and IRONVERBS_VIEW set.
 * Usage: probe VIEW. Prints what is wrong and exits 1, or exits 0. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static int wrong;
#define CHECK(x)                                                              \
	do {                                                                  \
		errno = 0;                                                    \
		if (!(x)) {                                                   \
			wrong = 1;                                            \
			fprintf(stderr, "%d: %s (errno %d)\n", __LINE__, #x, errno); \
		}                                                             \
	} while (0)

#define GUID "/sys/class/infiniband/iron0/node_guid"
#define LINK "/sys/class/infiniband_verbs/uverbs0/device"
#define DIR_ "/sys/class/infiniband"
#define DEV "/dev/infiniband/uverbs0"
#define NONE "/sys/class/infiniband/none"

/* Before libc has an environment: not redirected, and no harm to what comes later. */
static void preinit(int argc, char **argv, char **envp)
{
	(void)argc, (void)argv, (void)envp;
	int fd = open(GUID, O_RDONLY);
	if (fd >= 0)
		close(fd);
}
__attribute__((section(".preinit_array"), used)) static void (*at_preinit)(int, char **, char **) = preinit;

static int constructed = -1;
__attribute__((constructor)) static void construct(void) { constructed = open(GUID, O_RDONLY); }

static int reads(int fd)
{
	char text[32] = "";
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	return n > 0 && strncmp(text, "0200:", 5) == 0;
}

static int streams(FILE *f)
{
	char text[32] = "";
	if (!f)
		return 0;
	char *got = fgets(text, sizeof text, f);
	fclose(f);
	return got && strncmp(text, "0200:", 5) == 0;
}

static int regular(const struct stat *st) { return S_ISREG(st->st_mode) && st->st_size == 20; }

static volatile sig_atomic_t handled;
static void handler(int s)
{
	(void)s;
	handled = reads(open(GUID, O_RDONLY)) ? 1 : -1;
}

static void *thread(void *unused)
{
	for (int i = 0; i < 200; i++)
		if (!reads(open(GUID, O_RDONLY)))
			return thread;
	return unused;
}

static int any(const struct dirent *d) { return d->d_name[0] != '.'; }

int main(int argc, char **argv)
{
	const char *view = argc > 1 ? argv[1] : "";
	struct stat st;
	struct stat64 st64;
	struct statx stx;
	char text[PATH_MAX];
	struct dirent **list;
	struct dirent64 **list64;

	CHECK(reads(constructed));

	CHECK(reads(open(GUID, O_RDONLY)));
	CHECK(reads(open64(GUID, O_RDONLY)));
	CHECK(reads(openat(AT_FDCWD, GUID, O_RDONLY)));
	CHECK(reads(openat64(17, GUID, O_RDONLY)));
	volatile int flags = O_RDONLY; /* not constant: the fortified __open_2 */
	CHECK(reads(open(GUID, flags)));
	CHECK(reads(open64(GUID, flags)));
	CHECK(reads(openat(AT_FDCWD, GUID, flags)));
	CHECK(reads(openat64(AT_FDCWD, GUID, flags)));
	CHECK(streams(fopen(GUID, "r")));
	CHECK(streams(fopen64(GUID, "re")));
	int fd = open(DEV, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	close(fd);
	int dir = open(DIR_, O_RDONLY | O_DIRECTORY);
	CHECK(dir >= 0);
	CHECK(reads(openat(dir, "iron0/node_guid", O_RDONLY)));
	close(dir);

	DIR *d = opendir(DIR_ "/");
	CHECK(d != NULL);
	int found = 0;
	for (struct dirent *e; d && (e = readdir(d));)
		found += strcmp(e->d_name, "iron0") == 0;
	CHECK(found == 1);
	if (d)
		closedir(d);
	CHECK(scandir(DIR_, &list, any, alphasort) == 1 && strcmp(list[0]->d_name, "iron0") == 0);
	CHECK(scandir64(DIR_, &list64, NULL, alphasort64) == 3);
	CHECK(scandirat(AT_FDCWD, DIR_, &list, any, NULL) == 1);

	CHECK(stat(GUID, &st) == 0 && regular(&st));
	CHECK(stat64(GUID, &st64) == 0 && st64.st_size == 20);
	CHECK(lstat(LINK, &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(lstat64(LINK, &st64) == 0 && S_ISLNK(st64.st_mode));
	CHECK(stat(LINK, &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(fstatat(AT_FDCWD, GUID, &st, 0) == 0 && regular(&st));
	CHECK(fstatat64(AT_FDCWD, LINK, &st64, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st64.st_mode));
	CHECK(statx(AT_FDCWD, GUID, 0, STATX_SIZE, &stx) == 0 && stx.stx_size == 20);
#ifdef __x86_64__
	/* What programs built before glibc 2.33 call. */
	extern int __xstat(int, const char *, struct stat *);
	extern int __xstat64(int, const char *, struct stat64 *);
	extern int __lxstat(int, const char *, struct stat *);
	extern int __lxstat64(int, const char *, struct stat64 *);
	extern int __fxstatat(int, int, const char *, struct stat *, int);
	extern int __fxstatat64(int, int, const char *, struct stat64 *, int);
	CHECK(__xstat(1, GUID, &st) == 0 && regular(&st));
	CHECK(__xstat64(1, GUID, &st64) == 0 && st64.st_size == 20);
	CHECK(__lxstat(1, LINK, &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(__lxstat64(1, LINK, &st64) == 0 && S_ISLNK(st64.st_mode));
	CHECK(__fxstatat(1, AT_FDCWD, GUID, &st, 0) == 0 && regular(&st));
	CHECK(__fxstatat64(1, AT_FDCWD, GUID, &st64, 0) == 0 && st64.st_size == 20);
#endif
	/* What ls -l asks: there is nothing, which is not the same as no such file. */
	CHECK(listxattr(GUID, text, sizeof text) >= 0 || errno == ENOTSUP);
	CHECK(llistxattr(LINK, text, sizeof text) >= 0 || errno == ENOTSUP);
	CHECK(getxattr(GUID, "user.none", text, sizeof text) == -1 && errno != ENOENT);
	CHECK(lgetxattr(LINK, "user.none", text, sizeof text) == -1 && errno != ENOENT);
	int here = open(".", O_RDONLY | O_DIRECTORY);
	CHECK(chdir(DIR_ "/iron0") == 0 && reads(open("node_guid", O_RDONLY)));
	CHECK(chdir(NONE) == -1 && errno == ENOENT);
	CHECK(fchdir(here) == 0 && close(here) == 0);
	CHECK(access(GUID, R_OK) == 0);
	CHECK(eaccess(GUID, R_OK) == 0);
	CHECK(euidaccess(GUID, R_OK) == 0);
	CHECK(faccessat(AT_FDCWD, GUID, R_OK, 0) == 0);

	const char *target = "../../infiniband/iron0/device";
	volatile size_t size = sizeof text; /* not constant: the fortified __readlink_chk */
	memset(text, 0, sizeof text);
	CHECK(readlink(LINK, text, sizeof text) == (ssize_t)strlen(target) && strcmp(text, target) == 0);
	CHECK(readlink(LINK, text, size) == (ssize_t)strlen(target));
	CHECK(readlinkat(AT_FDCWD, LINK, text, sizeof text) == (ssize_t)strlen(target));
	CHECK(readlinkat(AT_FDCWD, LINK, text, size) == (ssize_t)strlen(target));

	/* Resolved paths are those the program would see on a machine with the device. */
	const char *device = "/sys/class/infiniband/iron0/device";
	CHECK(realpath(LINK, text) == text && strcmp(text, device) == 0);
	char *made = realpath(LINK, NULL);
	CHECK(made && strcmp(made, device) == 0);
	free(made);
	made = canonicalize_file_name(LINK);
	CHECK(made && strcmp(made, device) == 0);
	free(made);
	made = realpath(LINK "/../../../../..", NULL);
	CHECK(made && made[0] == '/');
	free(made);
	CHECK(realpath("/proc/self/..", text) == text && strcmp(text, "/proc") == 0);
	CHECK(realpath(view, text) == text && strcmp(text, view) == 0);

	/* Out by dots. */
	CHECK(stat("/sys/class/infiniband/../net/lo", &st) == 0);
	CHECK(stat("/dev/infiniband/../null", &st) == 0 && S_ISCHR(st.st_mode));

	/* Errors are libc's, with its errno. */
	CHECK(open(NONE, O_RDONLY) == -1 && errno == ENOENT);
	CHECK(fopen(NONE, "r") == NULL && errno == ENOENT);
	CHECK(opendir(NONE) == NULL && errno == ENOENT);
	CHECK(opendir(GUID) == NULL && errno == ENOTDIR);
	CHECK(realpath(NONE, text) == NULL && errno == ENOENT);
	CHECK(readlink(GUID, text, sizeof text) == -1 && errno == EINVAL);
	CHECK(open("", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(open(GUID "/", O_RDONLY) == -1 && errno == ENOTDIR);
	const char *volatile null = NULL;
	CHECK(open(null, O_RDONLY) == -1 && errno == EFAULT);
	CHECK(access(null, R_OK) == -1 && errno == EFAULT);
	CHECK(realpath(null, text) == NULL && errno == EINVAL);
	static char lengthy[200000] = "/dev/infiniband/";
	memset(lengthy + 16, 'x', sizeof lengthy - 17);
	CHECK(open(lengthy, O_RDONLY) == -1 && errno == ENAMETOOLONG);
	CHECK(opendir(lengthy) == NULL && errno == ENAMETOOLONG);
	for (size_t i = 15; i + 1 < sizeof lengthy; i += 2)
		memcpy(lengthy + i, "/.", 2);
	CHECK(open(lengthy, O_RDONLY) == -1 || errno == 0); /* no crash, whatever it is */
	memset(lengthy, '/', sizeof lengthy - 1);
	CHECK(open(lengthy, O_RDONLY) == -1);
	errno = 42; /* a success leaves errno alone */
	close(open(GUID, O_RDONLY));
	if (errno != 42)
		wrong = 1, fprintf(stderr, "errno became %d\n", errno);

	/* Creation, with the variadic mode. */
	umask(0);
	snprintf(text, sizeof text, "%s/made-%d", view, getpid());
	fd = open(text, O_CREAT | O_EXCL | O_WRONLY, 0641);
	CHECK(fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & 0777) == 0641);
	close(fd);
	unlink(text);

	/* In a signal handler on the smallest stack, and in threads. */
	if (!getenv("PROBE_SANITIZED")) {
		static char stack[16384];
		stack_t alternative = { .ss_sp = stack, .ss_size = sizeof stack };
		struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
		sigaltstack(&alternative, NULL);
		sigaction(SIGUSR1, &action, NULL);
		raise(SIGUSR1);
		CHECK(handled == 1);
	}
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, thread, NULL);
	for (int i = 0; i < 4; i++) {
		void *result;
		pthread_join(threads[i], &result);
		CHECK(result == NULL);
	}

	/* The environment of the start counts, and children see the view too. */
	clearenv();
	CHECK(reads(open(GUID, O_RDONLY)));
	pid_t pid = fork();
	if (pid == 0)
		_exit(reads(open(GUID, O_RDONLY)) ? 7 : 8);
	int status = 0;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	return wrong;
}
