//! How many transactions fit the target as one set, by experience.
//!
//! While nothing fails, a batch is tried whole. When a set does not fit, half of it is tried,
//! then half of that, down to [`EXACT`] transactions. Those are replayed one change at a time. Each
//! set that fits doubles the size again. So one conflict among thousands of transactions costs a
//! few attempts (rule F4).
//!
//! Where sets keep failing, the next batch is first cut to the size that last fitted. When even the
//! smallest sets fail repeatedly, more and more transactions are replayed exactly before the next
//! set is tried.

/// This few transactions are replayed at once. Another try as a set costs two round trips, about as
/// much as one transaction's replay.
pub(crate) const EXACT: usize = 4;
/// Maximum multiple of [`EXACT`] transactions that are replayed before a set is tried again. At
/// that number a failing try costs a few per cent.
const BACK_OFF_MAX: u32 = 64;

/// The size that is tried next.
#[derive(Debug)]
pub(crate) struct SetSize {
    transactions: usize,
    /// Exact replays left before a set is tried.
    exact_left: u32,
    back_off: u32,
}

impl SetSize {
    pub(crate) fn new() -> SetSize {
        SetSize { transactions: usize::MAX, exact_left: 0, back_off: 0 }
    }

    /// Maximum number of transactions in the next set.
    pub(crate) fn transactions(&self) -> usize {
        self.transactions
    }

    /// Where to cut a batch of more `transactions` than that. It cuts by halves, as near to the
    /// right size as that allows, because a cut moves everything behind it.
    pub(crate) fn cut(&self, transactions: usize) -> usize {
        let mut at = self.transactions;
        while at.saturating_mul(2) < transactions {
            at *= 2;
        }
        at
    }

    /// Notes that a set of `transactions` did not fit.
    pub(crate) fn failed(&mut self, transactions: usize) {
        self.transactions = (transactions / 2).max(EXACT);
        if self.transactions == EXACT {
            self.back_off = (self.back_off * 2).clamp(1, BACK_OFF_MAX);
            self.exact_left = self.back_off;
        }
    }

    /// Notes that a set of `transactions` fitted.
    pub(crate) fn fitted(&mut self, transactions: usize) {
        if transactions >= self.transactions {
            self.transactions = transactions.saturating_mul(2);
            self.back_off = 0;
        }
    }

    /// Notes that a group of transactions was replayed exactly.
    pub(crate) fn replayed(&mut self) {
        self.exact_left = self.exact_left.saturating_sub(1);
        if self.exact_left == 0 && self.transactions <= EXACT {
            self.transactions = 2 * EXACT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the transactions executed as sets and those replayed exactly, when batches of 1,000
    /// are applied and every `distance`th transaction conflicts.
    fn cost(distance: usize) -> (usize, usize) {
        let (mut set_size, mut sets, mut exact) = (SetSize::new(), 0, 0);
        for batch in 0..100 {
            let mut at = batch * 1_000;
            let end = at + 1_000;
            while at < end {
                let size = set_size.transactions().min(end - at);
                if size <= EXACT {
                    exact += size;
                    set_size.replayed();
                    at += size;
                    continue;
                }
                sets += size;
                if (at..at + size).any(|transaction| transaction % distance == distance - 1) {
                    set_size.failed(size);
                } else {
                    set_size.fitted(size);
                    at += size;
                }
            }
        }
        (sets, exact)
    }

    #[test]
    fn cutting_a_batch_into_small_pieces_moves_each_transaction_a_few_times() {
        let set_size = SetSize { transactions: EXACT, exact_left: 1, back_off: 1 };
        let (mut rest, mut pieces, mut moved) = (vec![10_001], Vec::new(), 0);
        while let Some(size) = rest.pop() {
            if size <= set_size.transactions() {
                pieces.push(size);
                continue;
            }
            let at = set_size.cut(size);
            assert!(at < size);
            moved += size - at;
            rest.extend([size - at, at]);
        }
        assert_eq!(pieces.pop(), Some(1));
        assert_eq!(pieces, [EXACT; 2_500]);
        assert!(moved < 10_001 * 12, "{moved}");
    }

    #[test]
    fn without_conflicts_nothing_is_tried_twice() {
        assert_eq!(cost(usize::MAX), (100_000, 0));
    }

    #[test]
    fn rare_conflicts_cost_few_replays_and_no_more_than_three_tries() {
        for distance in [10_000, 1_000, 100] {
            let (sets, exact) = cost(distance);
            assert!(exact <= 16 * 100_000 / distance, "{exact} replayed at {distance}");
            assert!(sets <= 300_000, "{sets} executed as sets at {distance}");
        }
    }

    #[test]
    fn where_everything_conflicts_sets_are_hardly_tried() {
        let (sets, exact) = cost(2);
        assert!(exact >= 95_000, "{exact} replayed");
        assert!(sets <= 20_000, "{sets} executed as sets");
    }
}
