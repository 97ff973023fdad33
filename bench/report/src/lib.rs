//! What every benchmark's report shares, whatever it measures.
//!
//! `bench` compares replication, and `bench/peers`, a workspace of its own, compares stores. Both write
//! tables of Markdown ([`table`]), pictures ([`chart`]), and where and when they measured
//! ([`provenance`]). What the figures mean stays with each of them; so do the formats of their
//! records.

pub mod chart;
pub mod provenance;
pub mod table;
