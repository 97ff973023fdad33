//! Makes a row part of a message: takes it apart, filters it and renders it.

use std::borrow::Cow;

use base::Lsn;
use decode::RawTuple;
use filter::Filter;
use proto::pgoutput::encode;
use txn::reorder::Chunks;
use types::{HeapTuple, Settings, Value, Varlena};

use crate::error::{Error, Kind, Result};
use crate::table::OutputTable;

/// Memory for the values of a row, kept from one row to the next.
#[derive(Debug, Default)]
pub(crate) struct Room(Vec<Value<'static>>);

impl Room {
    fn take(&mut self) -> Vec<Value<'static>> {
        std::mem::take(&mut self.0)
    }

    /// Takes back the memory of a row's values, without the values.
    pub(crate) fn give(&mut self, side: Side<'_>) {
        let mut values = side.values;
        values.clear();
        self.0 = values.into_iter().map(|_| Value::Null).collect();
    }
}

/// One side of a change: the old row or the new one.
pub(crate) struct Side<'a> {
    values: Vec<Value<'a>>,
    /// The number of columns that the row itself has. Later columns have missing values.
    stored: usize,
}

/// The change that a row belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub(crate) lsn: Lsn,
    pub(crate) table: &'a OutputTable,
    pub(crate) chunks: &'a Chunks,
}

impl<'a> Of<'a> {
    fn broken(&self, column: Option<&str>, cause: types::Error) -> Error {
        let (table, column) = (self.table.full_name(), column.map(str::to_owned));
        Error::new(Kind::Value { lsn: self.lsn, table, column, cause })
    }

    /// Takes a row apart.
    pub(crate) fn side(&self, tuple: &RawTuple<'a>, room: &mut Room) -> Result<Side<'a>> {
        let mut values: Vec<Value<'a>> = room.take();
        let deformed = HeapTuple::new(tuple.infomask2, tuple.infomask, tuple.hoff, tuple.bytes)
            .and_then(|tuple| tuple.deform(&self.table.attributes, &mut values));
        deformed.map_err(|cause| self.broken(None, cause))?;
        Ok(Side { values, stored: tuple.attributes() })
    }

    /// Whether this is a large value that the change did not bring along, so that it is unknown
    /// here.
    fn is_unchanged(&self, value: &Value<'_>) -> Result<bool> {
        let Value::Varlena(Varlena::External(pointer)) = value else { return Ok(false) };
        let found = self.chunks.value(pointer).map_err(|cause| self.broken(None, cause))?;
        Ok(found.is_none())
    }

    /// Takes large values that did not change from the old row, if they are part of the replica
    /// identity.
    pub(crate) fn complete(&self, new: &Side<'a>, old: &Side<'a>) -> Result<Side<'a>> {
        let mut values = new.values.clone();
        for (value, old) in values.iter_mut().zip(&old.values) {
            if self.is_unchanged(value)? && *old != Value::Null && !self.is_unchanged(old)? {
                *value = *old;
            }
        }
        Ok(Side { values, stored: new.stored })
    }

    fn payload(&self, side: &Side<'a>, place: usize) -> types::Result<Option<Cow<'a, [u8]>>> {
        match &side.values[place] {
            Value::Varlena(external @ Varlena::External(pointer)) => match self.chunks.value(pointer)? {
                Some(value) => value.payload().map(Some),
                None => external.payload().map(Some),
            },
            // Filters compare a missing value only if its stored form is known. For all others, it
            // only counts whether there is one.
            Value::Null if place >= side.stored => {
                let rendered = self.table.rendered.iter().find(|(at, _)| *at == place);
                Ok(rendered.map(|_| Cow::Borrowed(&b""[..])))
            }
            value => value.payload(),
        }
    }

    /// Whether one of the filters keeps a row.
    pub(crate) fn keeps(&self, filters: &'a [Filter], side: &Side<'a>) -> Result<bool> {
        let places = &self.table.filters.places;
        let payload = |number: i16| {
            let place = usize::try_from(number - 1).ok().and_then(|at| places.get(at).copied().flatten());
            // A dropped column is NULL.
            place.map_or(Ok(None), |place| self.payload(side, place))
        };
        for filter in filters {
            let keeps = filter.keeps(&payload).map_err(|cause| {
                Error::new(Kind::Filter { lsn: self.lsn, table: self.table.full_name(), cause })
            });
            if keeps? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Appends the published columns.
    pub(crate) fn write(
        &self,
        side: &Side<'a>,
        (settings, binary): (&Settings, bool),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        encode::tuple(out, self.table.columns.len() as u16);
        for column in &self.table.columns {
            let place = column.place;
            let mut render = |payload: &[u8]| {
                encode::value(out, binary, |out| match binary {
                    true => column.codec.binary(payload, settings, out),
                    false => column.codec.text(payload, settings, out),
                })
            };
            let written = match &side.values[place] {
                Value::Fixed(payload) | Value::Varlena(Varlena::Plain(payload)) => render(payload),
                Value::Null => {
                    self.missing(place, side.stored, binary, out);
                    Ok(())
                }
                Value::Varlena(Varlena::External(pointer)) => match self.chunks.value(pointer) {
                    Ok(None) => {
                        encode::unchanged(out);
                        Ok(())
                    }
                    Ok(Some(value)) => value.payload().and_then(|payload| render(&payload)),
                    Err(error) => Err(error),
                },
                Value::Varlena(compressed) => compressed.payload().and_then(|payload| render(&payload)),
            };
            written.map_err(|cause| self.broken(Some(&column.name), cause))?;
        }
        Ok(())
    }

    /// The columns that are sent, in binary form.
    pub(crate) fn binary_values(&self, side: &Side<'a>, settings: &Settings) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = Vec::with_capacity(self.table.columns.len());
        for column in &self.table.columns {
            let broken = |cause| self.broken(Some(&column.name), cause);
            let payload = match &side.values[column.place] {
                Value::Null if column.place >= side.stored => {
                    let missing = self.table.rendered.iter().find(|(at, _)| *at == column.place);
                    values.push(missing.and_then(|(_, missing)| missing.binary.clone()));
                    continue;
                }
                Value::Null => None,
                _ => self.payload(side, column.place).map_err(broken)?,
            };
            let Some(payload) = payload else {
                values.push(None);
                continue;
            };
            let mut rendered = Vec::new();
            column.codec.binary(&payload, settings, &mut rendered).map_err(broken)?;
            values.push(Some(rendered));
        }
        Ok(values)
    }

    /// NULL, or a missing value that the server has rendered.
    fn missing(&self, place: usize, stored: usize, binary: bool, out: &mut Vec<u8>) {
        let rendered = self.table.rendered.iter().find(|(at, _)| *at == place && place >= stored);
        let bytes = rendered.and_then(|(_, missing)| match binary {
            true => missing.binary.as_deref(),
            false => missing.text.as_deref().map(str::as_bytes),
        });
        match bytes {
            None => encode::null(out),
            Some(bytes) => {
                let append = |out: &mut Vec<u8>| {
                    out.extend_from_slice(bytes);
                    Ok::<(), std::convert::Infallible>(())
                };
                let Ok(()) = encode::value(out, binary, append);
            }
        }
    }
}
