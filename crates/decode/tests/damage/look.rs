//! Uses everything in a decoded record. Shared by the tests and the fuzz target.

use decode::{NewTuple, RawTuple, What};

/// Touches everything, like code that uses it.
pub(crate) fn look(what: &What<'_>) {
    let tuple = |tuple: &RawTuple<'_>| {
        assert!(tuple.data().len() <= tuple.bytes.len());
        assert!(tuple.null_bitmap().is_none_or(|bitmap| bitmap.len() * 8 >= tuple.attributes()));
    };
    let new = |new: &NewTuple<'_>| match new {
        NewTuple::Whole(whole) => tuple(whole),
        NewTuple::Spliced(spliced) => {
            let short = RawTuple { infomask2: 1, infomask: 0, hoff: 24, bytes: &[0; 9] };
            if let Some(bytes) = spliced.bytes(&short) {
                tuple(&spliced.tuple(&bytes));
            }
        }
        NewTuple::InImage(image) => {
            let _ = image.restore(&mut [0; wal::PAGE_SIZE]);
        }
    };
    match what {
        What::Insert(insert) => new(&insert.tuple),
        What::MultiInsert(insert) => {
            assert_eq!(insert.rows().map(|(_, row)| new(&row)).count(), usize::from(insert.count()));
        }
        What::Update(update) => {
            new(&update.tuple);
            update.old.iter().for_each(|old| tuple(&old.tuple));
        }
        What::Delete(delete) => delete.old.iter().for_each(|old| tuple(&old.tuple)),
        What::Commit(ended) | What::Abort(ended) => {
            assert_eq!(ended.subxacts.iter().count(), ended.subxacts.len());
            assert_eq!(ended.invalidations.iter().count(), ended.invalidations.len());
        }
        other => drop(format!("{other:?}")),
    }
}
