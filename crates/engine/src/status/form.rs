//! The form in which values come, and the column that prevents the binary form.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use source::publication::BinaryRefusal;

/// The form in which a stream's values come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValuesSnapshot {
    /// `binary` or `text`.
    pub form: String,
    /// Why the form is text.
    pub reason: Option<String>,
    /// The table of the first column that prevents the binary form.
    pub table: Option<String>,
    /// That column.
    pub column: Option<String>,
}

impl ValuesSnapshot {
    pub(crate) fn binary() -> ValuesSnapshot {
        ValuesSnapshot { form: "binary".to_owned(), reason: None, table: None, column: None }
    }

    pub(crate) fn text(reason: &str) -> ValuesSnapshot {
        ValuesSnapshot {
            form: "text".to_owned(),
            reason: Some(reason.to_owned()),
            ..ValuesSnapshot::binary()
        }
    }
}

impl From<&BinaryRefusal> for ValuesSnapshot {
    fn from(refusal: &BinaryRefusal) -> ValuesSnapshot {
        let (table, column) = refusal.column().unzip();
        ValuesSnapshot {
            table: table.map(ToString::to_string),
            column: column.map(str::to_owned),
            ..ValuesSnapshot::text(&refusal.to_string())
        }
    }
}

/// The form of the stream that began last; nothing before the first.
#[derive(Debug, Default)]
pub(super) struct Form(Mutex<Option<ValuesSnapshot>>);

impl Form {
    pub(super) fn set(&self, values: ValuesSnapshot) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(values);
    }

    pub(super) fn get(&self) -> Option<ValuesSnapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
