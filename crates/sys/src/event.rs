//! Waiting: eventfd, epoll, and threads that take no signals.
