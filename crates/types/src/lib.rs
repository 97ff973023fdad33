//! Values as they lie on disk, rendered to the bytes that the server's output and send functions give.
//!
//! Handed are heap tuples ([`Tuple`]) and descriptions of their columns and types ([`Attribute`], [`TypeInfo`]), from
//! whatever reads WAL and catalogs. A type is compiled to a [`Codec`] once; a type whose values cannot be rendered is
//! found there, by name. A codec then turns payloads into text (`typoutput`) or binary (`typsend`).
//!
//! Promises: what comes out is equal to the server's, byte for byte, under [`Settings`] and those named there. Bytes
//! that are damaged are an [`Error`], never a panic; no length is believed before it is checked, and no memory is
//! allocated that the input does not account for.
//!
//! Does not belong here: reading WAL, catalogs or TOAST tables, and what a value means. The README says how each type is
//! rendered and which ones are refused.

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
pub use describe::{TypeInfo, TypeKind, Types};
pub use error::{Error, Result, Unsupported};
pub use numeric::{NumericParts, parts as numeric_parts};
pub use settings::Settings;
pub use tuple::{Align, Attribute, Generated, Tuple, Value};
pub use varlena::{Compression, ToastPointer, Varlena, payload};
pub use zone::{TimeZone, ZoneFile};
