/* A streaming server that costs next to nothing, so that in bench/load_vs_peers.py the client is the limit.
 *
 * load_server PORT TTFT_MS ITL_MS CHUNKS [ARRIVALS|sleep]: one thread, one core, spinning. Every POST is answered with CHUNKS
 * server-sent events, the k-th due TTFT + k * ITL after the request was read; what is no POST, or does not ask for a
 * stream, gets a small JSON document at once. On SIGTERM it prints one JSON line: requests, seconds from the first
 * to the last, and how late its own writes were (microseconds: p50, p99, max): a late server would be charged to the
 * client. ARRIVALS names a file that then gets the instant at which each such request was read (int64 ns, monotonic).
 * With the word "sleep" in its place the server sleeps until something is due, up to 1 ms too long, and leaves its core
 * to others.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 262144
#define QUEUE (1 << 20)
#define LATE_BINS 200000 /* of one microsecond */

typedef struct {
    char *in;
    int used, room, chunk, close_after, chat;
    uint32_t life; /* tells a reused file number from the one that was queued */
} Conn;
typedef struct {
    int64_t due;
    int fd;
    uint32_t life;
} Due;
typedef struct {
    Due *items;
    uint32_t head, tail;
} Fifo; /* equal delays: what is queued first is due first */

static Conn conns[MAX_FD];
static Fifo firsts, nexts;
static int64_t *arrivals, ttft_ns, itl_ns, first_ns, last_ns, requests, late[LATE_BINS + 1], writes;
static int chunks, epfd;
static volatile sig_atomic_t stop;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void on_term(int number) { (void)number, stop = 1; }

static void push(Fifo *queue, int64_t due, int fd) {
    queue->items[queue->tail++ % QUEUE] = (Due){due, fd, conns[fd].life};
}

static void shut(int fd) {
    conns[fd].life++;
    conns[fd].used = conns[fd].chunk = 0;
    close(fd);
}

static int put(int fd, const char *data, int size) {
    if (send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == size) return 1;
    shut(fd);
    return 0;
}

static void small(int fd, const char *body) {
    char out[1024];
    int size = snprintf(out, sizeof out,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    if (put(fd, out, size) && conns[fd].close_after) shut(fd);
}

static void emit(Due *due) {
    int fd = due->fd, size = 0;
    Conn *conn = &conns[fd];
    if (conn->life != due->life) return;
    int64_t after = (now_ns() - due->due) / 1000;
    late[after < LATE_BINS ? after : LATE_BINS]++, writes++;
    char out[2048], event[512];
    if (conn->chunk == 0)
        size = sprintf(out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    int k = conn->chunk++, last = conn->chunk == chunks;
    const char *finish = last ? "\"length\"" : "null";
    int length = conn->chat
        ? sprintf(event, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"fake\","
                  "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" t%d\"},\"finish_reason\":%s}]}\n\n", k, finish)
        : sprintf(event, "data: {\"id\":\"c\",\"object\":\"text_completion\",\"created\":0,\"model\":\"fake\","
                  "\"choices\":[{\"index\":0,\"text\":\" t%d\",\"logprobs\":null,\"finish_reason\":%s}]}\n\n", k, finish);
    size += sprintf(out + size, "%x\r\n%s\r\n", length, event);
    if (last) {
        length = sprintf(event, "data: {\"id\":\"c\",\"object\":\"%s\",\"created\":0,\"model\":\"fake\",\"choices\":[],"
                         "\"usage\":{\"prompt_tokens\":32,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\ndata: [DONE]\n\n",
                         conn->chat ? "chat.completion.chunk" : "text_completion", chunks, chunks + 32);
        size += sprintf(out + size, "%x\r\n%s\r\n0\r\n\r\n", length, event);
    }
    if (!put(fd, out, size)) return;
    if (!last) push(&nexts, due->due + itl_ns, fd);
    else if (conn->close_after) shut(fd);
    else conn->chunk = 0;
}

static void request(int fd) {
    Conn *conn = &conns[fd];
    conn->in[conn->used] = 0;
    char *end = strstr(conn->in, "\r\n\r\n");
    if (!end) return;
    char *field = strcasestr(conn->in, "content-length:");
    int length = field && field < end ? atoi(field + 15) : 0;
    if (conn->used < end + 4 - conn->in + length) return;
    int64_t read_ns = now_ns();
    field = strcasestr(conn->in, "connection: close");
    conn->close_after = field && field < end;
    int post = !strncmp(conn->in, "POST /v1/", 9);
    conn->chat = post && !strncmp(conn->in + 9, "chat", 4);
    int streamed = strstr(end, "\"stream\":true") || strstr(end, "\"stream\": true");
    conn->used = 0;
    if (post && streamed) {
        if (arrivals && !(requests & (requests - 1))) arrivals = realloc(arrivals, 2 * (requests | 1) * sizeof *arrivals);
        if (arrivals) arrivals[requests] = read_ns;
        if (!requests++) first_ns = read_ns;
        last_ns = read_ns;
        push(&firsts, read_ns + ttft_ns, fd);
    } else if (post) {
        small(fd, "{\"choices\":[{\"index\":0,\"text\":\"a\",\"message\":{\"role\":\"assistant\",\"content\":\"a\"},"
                  "\"finish_reason\":\"stop\"}]}");
    } else {
        small(fd, "{\"object\":\"list\",\"data\":[{\"id\":\"fake\",\"object\":\"model\",\"created\":0}]}");
    }
}

static void readable(int fd) {
    Conn *conn = &conns[fd];
    for (;;) {
        if (conn->room - conn->used < 65536) conn->in = realloc(conn->in, (conn->room += 131072));
        int got = read(fd, conn->in + conn->used, conn->room - conn->used - 1);
        if (got < 0) {
            if (errno != EAGAIN) shut(fd);
            return;
        }
        if (got == 0) return shut(fd);
        conn->used += got;
        request(fd);
        if (conns[fd].used == 0) return;
    }
}

/* Milliseconds until the next write is due, rounded up; 100 at most, so that a signal is seen. */
static int until_due(void) {
    int64_t due = now_ns() + 100000000;
    if (firsts.head != firsts.tail && firsts.items[firsts.head % QUEUE].due < due) due = firsts.items[firsts.head % QUEUE].due;
    if (nexts.head != nexts.tail && nexts.items[nexts.head % QUEUE].due < due) due = nexts.items[nexts.head % QUEUE].due;
    int64_t left = due - now_ns();
    return left <= 0 ? 0 : (left + 999999) / 1000000;
}

static int64_t quantile(double share) {
    int64_t seen = 0;
    for (int bin = 0; bin <= LATE_BINS; bin++)
        if ((seen += late[bin]) >= share * writes) return bin;
    return LATE_BINS;
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6) return fprintf(stderr, "usage: load_server PORT TTFT_MS ITL_MS CHUNKS [ARRIVALS|sleep]\n"), 2;
    int sleeps = argc == 6 && !strcmp(argv[5], "sleep");
    if (argc == 6 && !sleeps) arrivals = malloc(2 * sizeof *arrivals);
    ttft_ns = atof(argv[2]) * 1e6, itl_ns = atof(argv[3]) * 1e6, chunks = atoi(argv[4]);
    firsts.items = malloc(QUEUE * sizeof(Due)), nexts.items = malloc(QUEUE * sizeof(Due));
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    signal(SIGTERM, on_term);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 65535)) return perror("bind"), 3;
    socklen_t size = sizeof address;
    getsockname(listener, (struct sockaddr *)&address, &size);
    epfd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[512];
    epoll_ctl(epfd, EPOLL_CTL_ADD, listener, &event);
    printf("listening on http://127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    while (!stop) {
        int count = epoll_wait(epfd, events, 512, sleeps ? until_due() : 0);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd != listener) {
                readable(fd);
                continue;
            }
            while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                if (fd >= MAX_FD) {
                    close(fd);
                    continue;
                }
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                event.data.fd = fd, event.events = EPOLLIN;
                epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event);
                conns[fd].used = conns[fd].chunk = 0;
            }
        }
        Fifo *queues[] = {&firsts, &nexts};
        for (int q = 0; q < 2; q++)
            while (queues[q]->head != queues[q]->tail && queues[q]->items[queues[q]->head % QUEUE].due <= now_ns()) {
                Due due = queues[q]->items[queues[q]->head++ % QUEUE];
                emit(&due);
            }
    }
    FILE *out = arrivals ? fopen(argv[5], "wb") : NULL;
    if (out) fwrite(arrivals, sizeof *arrivals, requests, out), fclose(out);
    printf("{\"requests\": %ld, \"span_s\": %.6f, \"late_us\": {\"p50\": %ld, \"p99\": %ld, \"max\": %ld}}\n", (long)requests,
           (last_ns - first_ns) / 1e9, (long)quantile(0.5), (long)quantile(0.99), (long)quantile(1.0));
    return 0;
}
