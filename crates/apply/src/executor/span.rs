//! How many transactions that stay single are sent in one run, by experience.

/// The most transactions in one run: one wait for that many costs a few per cent of their time.
pub(crate) const TRANSACTIONS_MAX: usize = 128;
/// The most changes in one run, unless one transaction has more.
pub(crate) const CHANGES_MAX: usize = 4_096;
/// The most bytes of row data in one run. What fits into the sockets is sent, and answers are read,
/// even while a statement waits for a lock.
pub(crate) const BYTES_MAX: usize = 128 * 1024;

/// Decides how many transactions are sent at a time: as many as succeed.
#[derive(Debug)]
pub(super) struct Span {
    most: usize,
    /// How many transactions go by themselves before more are tried together.
    alone: u32,
    back_off: u32,
}

/// The most that go by themselves before more are tried together: a try that fails then costs a few
/// per cent.
const BACK_OFF_MAX: u32 = 64;

impl Default for Span {
    fn default() -> Span {
        Span { most: TRANSACTIONS_MAX, alone: 0, back_off: 0 }
    }
}

impl Span {
    /// How many of `ready` transactions to send next. A single one is applied by itself.
    pub(super) fn next(&mut self, ready: usize) -> usize {
        if self.alone > 0 {
            self.alone -= 1;
            return 1;
        }
        ready.min(self.most)
    }

    /// Notes that of `count` transactions sent, the first `committed` committed. After repeated
    /// failures fewer are sent, so the server passes over few. Where none ever succeeds with
    /// others, tries become rare.
    pub(super) fn sent(&mut self, count: usize, committed: usize) {
        if committed == count {
            self.most = self.most.max(2 * count).min(TRANSACTIONS_MAX);
        } else {
            self.most = committed.max(2);
        }
        if committed > 0 {
            self.back_off = 0;
        } else {
            self.back_off = (2 * self.back_off).clamp(1, BACK_OFF_MAX);
            // The first of them is the one that failed.
            self.alone = self.back_off - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends transactions together or by themselves until `count` are done, of which each
    /// `misfit`th succeeds only by itself. Returns the number of tries and of transactions applied
    /// by themselves.
    fn cost(count: usize, misfit: usize) -> (usize, usize) {
        let (mut span, mut done, mut attempts, mut alone) = (Span::default(), 0, 0, 0);
        while done < count {
            let sent = span.next(count - done);
            let mut committed = 0;
            if sent > 1 {
                attempts += 1;
                committed = (done..done + sent).take_while(|number| number % misfit != misfit - 1).count();
                span.sent(sent, committed);
                done += committed;
            }
            if committed < sent {
                alone += 1;
                done += 1;
            }
        }
        (attempts, alone)
    }

    #[test]
    fn as_many_go_together_as_go_well() {
        assert_eq!(cost(1_280, usize::MAX), (10, 0));
        // A conflict in each thousand costs its own transaction and the few tries that find it.
        let (attempts, alone) = cost(10_000, 1_000);
        assert_eq!(alone, 10);
        assert!(attempts < 110, "{attempts}");
        // A conflict in each tenth costs three small tries for ten transactions.
        let (attempts, alone) = cost(10_000, 10);
        assert_eq!(alone, 1_000);
        assert!(attempts <= 3_100, "{attempts}");
    }

    #[test]
    fn where_none_goes_with_others_few_are_tried() {
        let (attempts, alone) = cost(10_000, 1);
        assert_eq!(alone, 10_000);
        assert!(attempts < 170, "{attempts}");
    }
}
