//! CPU time of asynchronous work, whichever threads it runs on.
//!
//! The threads of a runtime work for every stage in turn, so the kernel's time of a thread says
//! nothing about a stage. [`CpuTime::of`] reads the thread's clock before and after each poll of
//! the work: two system calls. A stage is polled once for each block that it is handed, and for
//! each answer.
//!
//! Does not belong here: what blocks a thread elsewhere (`spawn_blocking`), and time that is spent
//! waiting.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The CPU time of some work so far. It only grows, but for [`CpuTime::take`].
#[derive(Debug, Default)]
pub struct CpuTime(AtomicU64);

impl CpuTime {
    /// Runs `work`, and counts what it takes. What the work spawns is not counted.
    pub async fn of<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            let before = now();
            let polled = work.as_mut().poll(context);
            self.add(now().saturating_sub(before));
            polled
        })
        .await
    }

    /// Counts time that was found out elsewhere.
    pub fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }

    /// What was counted since this was called last.
    pub fn take(&self) -> Duration {
        Duration::from_nanos(self.0.swap(0, Ordering::Relaxed))
    }

    /// Microseconds of CPU time, user and system.
    #[must_use]
    pub fn micros(&self) -> u64 {
        self.0.load(Ordering::Relaxed) / 1_000
    }
}

/// The CPU time of this thread.
fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;

    /// Keeps a thread busy for this time of its own.
    fn work(time: Duration) {
        let begin = now();
        while now() - begin < time {
            std::hint::spin_loop();
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_is_counted_and_waiting_is_not() {
        let (busy, idle) = (Arc::new(CpuTime::default()), CpuTime::default());
        let counted = Arc::clone(&busy);
        let other = tokio::spawn(async move {
            let work = async {
                for _ in 0..20 {
                    work(Duration::from_millis(5));
                    // Perhaps on another thread then.
                    tokio::task::yield_now().await;
                }
            };
            counted.of(work).await;
        });
        let began = Instant::now();
        idle.of(tokio::time::sleep(Duration::from_millis(200))).await;
        other.await.unwrap();
        let all = busy.micros();
        assert!((100_000..150_000).contains(&all), "{all}");
        assert!(idle.micros() < 50_000 && began.elapsed() >= Duration::from_millis(200), "{}", idle.micros());
        assert_eq!(busy.take().as_micros(), u128::from(all));
        assert_eq!(busy.micros(), 0, "all of it was taken");
    }
}
