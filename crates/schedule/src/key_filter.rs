//! The keys that a large transaction touches, in bounded memory.
//!
//! A few keys are kept as they are. More are kept only as bits (a Bloom filter). Then a key that
//! was never added sometimes counts as added. Like two keys with the same hash, that makes one
//! dependency too many. Among ten million keys it happens to one key in two hundred. Far beyond
//! that it happens to all keys, and no transaction passes this one.

use rustc_hash::FxHashSet;

/// Above this number, keys become bits.
const FEW: usize = 100_000;
/// 16 MB, of which each key takes [`BITS_PER_KEY`].
const WORDS: usize = 1 << 21;
const BITS_PER_KEY: u32 = 4;

/// A set of keys that never loses one, but with many keys may claim others too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyFilter {
    /// The keys themselves.
    Few(FxHashSet<u64>),
    /// Bits of a Bloom filter.
    Many(Vec<u64>),
}

impl Default for KeyFilter {
    fn default() -> KeyFilter {
        KeyFilter::Few(FxHashSet::default())
    }
}

/// Where the bits of a key are: word and bit. Keys are hashes whose bits need not all be equally
/// random, so they are mixed again.
fn places(key: u64) -> impl Iterator<Item = (usize, u64)> {
    let mixed = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (start, step) = (mixed, (mixed >> 17) | 1);
    (0..BITS_PER_KEY).map(move |n| {
        let place = start.wrapping_add(u64::from(n).wrapping_mul(step));
        let place = (place ^ (place >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        ((place >> 6) as usize % WORDS, 1 << (place & 63))
    })
}

fn set(words: &mut [u64], key: u64) {
    places(key).for_each(|(word, bit)| words[word] |= bit);
}

impl KeyFilter {
    /// Adds a key.
    pub fn add(&mut self, key: u64) {
        match self {
            KeyFilter::Few(keys) if keys.len() < FEW => drop(keys.insert(key)),
            KeyFilter::Few(keys) => {
                let mut words = vec![0; WORDS];
                keys.iter().for_each(|&key| set(&mut words, key));
                set(&mut words, key);
                *self = KeyFilter::Many(words);
            }
            KeyFilter::Many(words) => set(words, key),
        }
    }

    /// Whether `key` was added, or cannot be told from one that was.
    #[must_use]
    pub fn contains(&self, key: u64) -> bool {
        match self {
            KeyFilter::Few(keys) => keys.contains(&key),
            KeyFilter::Many(words) => places(key).all(|(word, bit)| words[word] & bit != 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key as callers make it: a number that a hasher has multiplied.
    fn key(n: u64) -> u64 {
        use std::hash::Hasher;
        let mut hasher = rustc_hash::FxHasher::default();
        hasher.write_u64(n);
        hasher.finish()
    }

    #[test]
    fn no_key_is_forgotten_and_few_are_taken_for_others() {
        for count in [10, FEW as u64, 1_000_000] {
            let mut filter = KeyFilter::default();
            (0..count).for_each(|n| filter.add(key(n)));
            assert_eq!(matches!(filter, KeyFilter::Many(_)), count > FEW as u64);
            assert!((0..count).all(|n| filter.contains(key(n))));
            let others = (count..count + 100_000).filter(|&n| filter.contains(key(n))).count();
            assert!(others < 30, "{others} of 100,000 beside {count}");
        }
    }
}
