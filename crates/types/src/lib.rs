//! Renders stored values to the bytes that the server's output and send functions return.
//!
//! This crate is handed heap tuples ([`HeapTuple`]) and descriptions of their columns and types
//! ([`Attribute`], [`TypeInfo`]) by the code that reads WAL and catalogs. A type is compiled to a
//! [`Codec`] once. Compiling refuses a type whose values cannot be rendered, and names it. A codec
//! then turns payloads into text (`typoutput`) or binary (`typsend`).
//!
//! Promises: the result is equal to the server's, byte for byte, under [`Settings`] and the
//! settings named there. Damaged bytes are an [`Error`], never a panic. Every length is checked
//! before it is used, and memory is bounded by the size of the input.
//!
//! Does not belong here: reading WAL, catalogs or TOAST tables, and what a value means. The README
//! says how each type is rendered and which ones are refused.

mod array;
mod bits;
mod builtin;
mod codec;
mod composite;
mod datetime;
mod describe;
mod error;
mod float;
mod geometry;
mod jsonb;
mod jsonpath;
mod network;
mod number;
mod numeric;
mod range;
mod reader;
mod render;
mod settings;
mod text;
mod textsearch;
mod tuple;
mod varlena;
mod xml;
mod zone;

pub use array::{Elements, elements as array_elements, missing_value};
pub use builtin::refused_base;
pub use codec::Codec;
pub use datetime::utc;
pub use describe::{TypeInfo, TypeKind, Types};
pub use error::{Error, Result, Unsupported};
pub use numeric::{NumericParts, parts as numeric_parts};
pub use settings::Settings;
pub use tuple::{Align, Attribute, Generated, HeapTuple, Value};
pub use varlena::{Compression, ToastPointer, Varlena, payload};
pub use zone::{TimeZone, ZoneFile};
