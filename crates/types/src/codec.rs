//! A type, ready to render its values.
//!
//! Compiling resolves domains, elements, columns and bounds once, and refuses types that cannot be
//! rendered. So a codec fails only on damaged bytes. It takes payloads: the bytes of a fixed-length
//! value, or the result of [`crate::Varlena::payload`].

use base::Oid;
use rustc_hash::FxHashMap;

use crate::builtin::Builtin;
use crate::describe::{TypeInfo, TypeKind, Types};
use crate::error::Unsupported;
use crate::settings::Settings;
use crate::tuple::{Align, Attribute};

/// How deep types within types are followed. A type cannot contain itself, so only damaged catalogs
/// go deeper.
const DEPTH_MAX: usize = 64;

/// Renders values of one type.
#[derive(Debug, Clone)]
pub struct Codec {
    len: i16,
    align: Align,
    pub(crate) form: Form,
}

/// How a type's values are rendered.
#[derive(Debug, Clone)]
pub(crate) enum Form {
    Builtin(Builtin),
    Array {
        element: Box<Codec>,
        delimiter: u8,
    },
    /// Vectors are arrays with a text form of their own. The length of their elements tells which
    /// vector it is.
    Vector {
        element: Box<Codec>,
        width: usize,
    },
    Enum {
        labels: FxHashMap<u32, Box<str>>,
    },
    Composite(Box<Composite>),
    Range {
        subtype: Box<Codec>,
    },
    Multirange {
        subtype: Box<Codec>,
    },
}

/// A composite type: its columns, with a codec for each that was not dropped.
#[derive(Debug, Clone)]
pub(crate) struct Composite {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) codecs: Vec<Option<Codec>>,
}

impl Codec {
    /// Compiles a codec for the type `oid`, as `types` describes it and all its parts.
    ///
    /// # Errors
    /// When the type, or a part of it, cannot be rendered or is not described.
    pub fn compile(oid: Oid, types: &impl Types, settings: &Settings) -> Result<Codec, Unsupported> {
        compile(oid, types, settings, 0)
    }

    pub(crate) fn len(&self) -> i16 {
        self.len
    }

    pub(crate) fn align(&self) -> Align {
        self.align
    }
}

fn compile(oid: Oid, types: &impl Types, settings: &Settings, depth: usize) -> Result<Codec, Unsupported> {
    let Some(info) = types.get(oid) else {
        return Err(Unsupported {
            name: format!("(pg_type has it as {oid})"),
            reason: "the catalogs do not describe it",
        });
    };
    let refused = |reason| Unsupported { name: info.name.clone(), reason };
    if depth > DEPTH_MAX {
        return Err(refused("it is nested too deeply"));
    }
    let part = |oid| compile(oid, types, settings, depth + 1);
    let form = match &info.kind {
        TypeKind::Base => match Builtin::find(oid).map_err(refused)? {
            Builtin::Money if !settings.lc_monetary_is_c => {
                return Err(refused("its text depends on lc_monetary, which is not C"));
            }
            Builtin::Int2Vector => vector(Builtin::Int2, 2, Align::Short),
            Builtin::OidVector => vector(Builtin::Unsigned4, 4, Align::Int),
            builtin => Form::Builtin(builtin),
        },
        TypeKind::Array { element } => {
            let delimiter = types.get(*element).map_or(b',', |element| element.delimiter);
            Form::Array { element: Box::new(part(*element)?), delimiter }
        }
        TypeKind::Enum { labels } => {
            let labels = labels.iter().map(|(oid, label)| (oid.0, label.as_str().into()));
            Form::Enum { labels: labels.collect() }
        }
        // Stored and written like its base type.
        TypeKind::Domain { base } => part(*base)?.form,
        TypeKind::Composite { attributes } => {
            let codecs = attributes
                .iter()
                .map(|attribute| (!attribute.dropped).then(|| part(attribute.type_oid)).transpose());
            let codecs = codecs.collect::<Result<_, _>>()?;
            Form::Composite(Box::new(Composite { attributes: attributes.clone(), codecs }))
        }
        TypeKind::Range { subtype } => Form::Range { subtype: Box::new(part(*subtype)?) },
        TypeKind::Multirange { range } => match types.get(*range) {
            Some(TypeInfo { kind: TypeKind::Range { subtype }, .. }) => {
                Form::Multirange { subtype: Box::new(part(*subtype)?) }
            }
            _ => return Err(refused("the catalogs do not describe its range")),
        },
        TypeKind::Pseudo => return Err(refused("it is a pseudo-type")),
    };
    Ok(Codec { len: info.len, align: info.align, form })
}

/// The codec for a vector of one of two built-in types. The catalogs need not describe the
/// elements: to them, a vector has no parts.
fn vector(element: Builtin, width: u8, align: Align) -> Form {
    let element = Codec { len: width.into(), align, form: Form::Builtin(element) };
    Form::Vector { element: Box::new(element), width: width.into() }
}
