//! Values in the form of the catalog's file: little-endian, counted, one after the other.
//!
//! Reading checks everything against the bytes that are there. A count is believed only as far as
//! bytes follow it.

use std::hash::Hash;

use base::{Lsn, Oid, RelFileLocator, Xid};
use rustc_hash::FxHashMap;
use wal::Fields;

/// A value that can be written and read back.
pub(crate) trait Field: Sized {
    fn write(&self, out: &mut Vec<u8>);
    /// `None` if the bytes are not such a value. Some of them may have been taken.
    fn read(fields: &mut Fields<'_>) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field for $number {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(fields: &mut Fields<'_>) -> Option<Self> {
                let bytes = fields.take(size_of::<$number>())?;
                Some(<$number>::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, i16, i32);

impl Field for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        match fields.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Field for Oid {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        fields.oid()
    }
}

impl Field for Xid {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        fields.xid()
    }
}

impl Field for Lsn {
    fn write(&self, out: &mut Vec<u8>) {
        self.as_u64().write(out);
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        fields.lsn()
    }
}

impl Field for RelFileLocator {
    fn write(&self, out: &mut Vec<u8>) {
        (self.tablespace, self.database, self.relfilenumber).write(out);
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        fields.locator()
    }
}

fn write_count(count: usize, out: &mut Vec<u8>) {
    u32::try_from(count).expect("counts of what a server's catalogs hold fit").write(out);
}

impl Field for String {
    fn write(&self, out: &mut Vec<u8>) {
        write_count(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let length = fields.u32()? as usize;
        String::from_utf8(fields.take(length)?.to_vec()).ok()
    }
}

impl<T: Field> Field for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(if bool::read(fields)? { Some(T::read(fields)?) } else { None })
    }
}

impl<T: Field> Field for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        write_count(self.len(), out);
        self.iter().for_each(|value| value.write(out));
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        // No capacity in advance, because the count may be wrong.
        (0..fields.u32()?).map(|_| T::read(fields)).collect()
    }
}

impl<K: Field + Eq + Hash, V: Field> Field for FxHashMap<K, V> {
    fn write(&self, out: &mut Vec<u8>) {
        write_count(self.len(), out);
        let entry = |(key, value): (&K, &V)| {
            let (mut bytes, mut key_bytes) = (Vec::new(), Vec::new());
            key.write(&mut key_bytes);
            value.write(&mut bytes);
            (key_bytes, bytes)
        };
        let mut entries: Vec<_> = self.iter().map(entry).collect();
        // In a fixed order, so that the same catalog gives the same file.
        entries.sort_unstable();
        for (key, value) in entries {
            out.extend_from_slice(&key);
            out.extend_from_slice(&value);
        }
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        (0..fields.u32()?).map(|_| Some((K::read(fields)?, V::read(fields)?))).collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident $at:tt),*))*) => {$(
        impl<$($name: Field),*> Field for ($($name,)*) {
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$at.write(out);)*
            }

            fn read(fields: &mut Fields<'_>) -> Option<Self> {
                Some(($($name::read(fields)?,)*))
            }
        }
    )*};
}

tuples! { (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) }

/// Makes a struct a [`Field`], with its fields in their order.
macro_rules! field_struct {
    ($name:ty { $($field:ident),* $(,)? }) => {
        impl $crate::field::Field for $name {
            fn write(&self, out: &mut Vec<u8>) {
                $($crate::field::Field::write(&self.$field, out);)*
            }

            fn read(fields: &mut wal::Fields<'_>) -> Option<Self> {
                Some(Self { $($field: $crate::field::Field::read(fields)?),* })
            }
        }
    };
}

pub(crate) use field_struct;
