//! Any bytes as a value of every kind of type, and as a row.
#![no_main]

use std::collections::HashMap;
use std::sync::LazyLock;

use base::{Oid, PgVersion};
use types::{Align, Attribute, Codec, Generated, HeapTuple, Settings, TypeInfo, TypeKind, payload};

/// OIDs and layouts of base types with a form of their own.
const BASE: [(u32, i16, Align); 24] = [
    (20, 8, Align::Double),
    (22, -1, Align::Int),
    (23, 4, Align::Int),
    (25, -1, Align::Int),
    (27, 6, Align::Short),
    (142, -1, Align::Int),
    (602, -1, Align::Double),
    (604, -1, Align::Double),
    (701, 8, Align::Double),
    (869, -1, Align::Int),
    (1082, 4, Align::Int),
    (1114, 8, Align::Double),
    (1184, 8, Align::Double),
    (1186, 16, Align::Double),
    (1266, 12, Align::Double),
    (1562, -1, Align::Int),
    (1700, -1, Align::Int),
    (2970, -1, Align::Double),
    (3614, -1, Align::Int),
    (3615, -1, Align::Int),
    (3802, -1, Align::Int),
    (4072, -1, Align::Int),
    (21, 2, Align::Short),
    (19, 64, Align::Char),
];

fn column(type_oid: u32, len: i16, align: Align) -> Attribute {
    Attribute { type_oid: Oid(type_oid), len, align, dropped: false, generated: Generated::No, missing: None }
}

struct Described {
    settings: Settings,
    columns: Vec<Attribute>,
    codecs: Vec<Codec>,
}

static DESCRIBED: LazyLock<Described> = LazyLock::new(|| {
    let made = [
        (1007, TypeKind::Array { element: Oid(23) }),
        (1009, TypeKind::Array { element: Oid(25) }),
        (3906, TypeKind::Range { subtype: Oid(1700) }),
        (3904, TypeKind::Range { subtype: Oid(23) }),
        (4532, TypeKind::Multirange { range: Oid(3906) }),
        (4451, TypeKind::Multirange { range: Oid(3904) }),
        (20_000, TypeKind::Composite { attributes: vec![column(23, 4, Align::Int), column(1009, -1, Align::Int)] }),
        (20_001, TypeKind::Array { element: Oid(20_000) }),
    ];
    let base = BASE.iter().map(|&(oid, len, align)| (oid, len, align, TypeKind::Base));
    let made = made.into_iter().map(|(oid, kind)| (oid, -1, Align::Double, kind));
    let all = base.chain(made).map(|(oid, len, align, kind)| {
        (Oid(oid), TypeInfo { oid: Oid(oid), name: oid.to_string(), len, align, delimiter: b',', kind })
    });
    let types: HashMap<Oid, TypeInfo> = all.collect();
    let settings = Settings::new(PgVersion::from_num(180_000));
    let mut sorted: Vec<&TypeInfo> = types.values().collect();
    sorted.sort_by_key(|info| info.oid);
    let columns = sorted.iter().map(|info| column(info.oid.0, info.len, info.align)).collect();
    let compile = |info: &&TypeInfo| Codec::compile(info.oid, &types, &settings).expect("every one is rendered");
    let codecs = sorted.iter().map(compile).collect();
    Described { settings, columns, codecs }
});

fn render(codec: &Codec, payload: &[u8]) {
    let mut out = Vec::new();
    let _ = codec.text(payload, &DESCRIBED.settings, &mut out);
    let _ = codec.binary(payload, &DESCRIBED.settings, &mut out);
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&which, rest)) = data.split_first() else { return };
    let Described { columns, codecs, .. } = &*DESCRIBED;
    if let Some(codec) = codecs.get(usize::from(which)) {
        render(codec, rest);
        if let Ok(payload) = payload(rest) {
            render(codec, &payload);
        }
        return;
    }
    // A row of all these types, or of those from some column on.
    let columns = &columns[usize::from(which) % columns.len()..];
    let codecs = &codecs[codecs.len() - columns.len()..];
    let mut values = Vec::new();
    if HeapTuple::from_page(rest).and_then(|tuple| tuple.deform(columns, &mut values)).is_ok() {
        for (value, codec) in values.iter().zip(codecs) {
            if let Ok(Some(payload)) = value.payload() {
                render(codec, &payload);
            }
        }
    }
});
