//! The story of one row: what both ends do to it, and what must become of that.
//!
//! Each story has ten ids and unique values of its own, from its `id` on, so stories never meet. It
//! is told in one of three tables, whose rules differ. What follows from a rule is written down
//! here a second time, by what the documents say, and not asked of the program.
//!
//! | kind | both begin with | the target does | the source does | the conflict |
//! | --- | --- | --- | --- | --- |
//! | `InsertExists` | – | inserts k | inserts k | `insert_exists` |
//! | `UpdateExists` | k | inserts another row | gives k the unique value of that row | `update_exists` |
//! | `MultipleUniqueConflicts` | – | inserts two rows | inserts a row with a key of each | `multiple_unique_conflicts`, one record for each of the two |
//! | `UpdateOriginDiffers` | k | updates k | updates k | `update_origin_differs` |
//! | `DeleteOriginDiffers` | k | updates k | deletes k | `delete_origin_differs` |
//! | `UpdateDeleted` | k | deletes k | updates k | `update_deleted` |
//! | `UpdateMoved` | k | changes the key of k | updates k | `update_deleted` |
//! | `UpdateMissing` | the source alone has k | – | updates k | `update_missing` |
//! | `DeleteMissing` | the source alone has k | – | deletes k | `delete_missing` |
//! | `DeleteDeleted` | k | deletes k | deletes k | `delete_missing` |
//! | `OwnInsert` | – | inserts k | – | none |
//! | `OwnDelete` | k | deletes k | – | none |

/// Ids of each story.
const IDS: i64 = 10;

/// The tables, by who wins there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    ByTime,
    LocalWins,
    RemoteWins,
}

impl Table {
    pub(crate) const ALL: [Table; 3] = [Table::ByTime, Table::LocalWins, Table::RemoteWins];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Table::ByTime => "by_time",
            Table::LocalWins => "local_wins",
            Table::RemoteWins => "remote_wins",
        }
    }

    pub(crate) fn resolution(self, conflict: &str) -> &'static str {
        match (self, conflict) {
            // There is nothing else to choose.
            (_, "delete_missing") => "skip",
            (Table::ByTime, _) => "last_update_wins",
            (Table::LocalWins, "update_deleted" | "update_missing") => "skip",
            (Table::LocalWins, _) => "keep_local",
            (Table::RemoteWins, _) => "apply_remote",
        }
    }
}

/// The types of conflicts that stories meet.
pub(crate) const CONFLICTS: [&str; 8] = [
    "insert_exists",
    "update_exists",
    "multiple_unique_conflicts",
    "update_origin_differs",
    "delete_origin_differs",
    "update_deleted",
    "update_missing",
    "delete_missing",
];

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    InsertExists,
    UpdateExists,
    MultipleUniqueConflicts,
    UpdateOriginDiffers,
    DeleteOriginDiffers,
    UpdateDeleted,
    UpdateMoved,
    UpdateMissing,
    DeleteMissing,
    DeleteDeleted,
    OwnInsert,
    OwnDelete,
}

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::InsertExists,
        Kind::UpdateExists,
        Kind::MultipleUniqueConflicts,
        Kind::UpdateOriginDiffers,
        Kind::DeleteOriginDiffers,
        Kind::UpdateDeleted,
        Kind::UpdateMoved,
        Kind::UpdateMissing,
        Kind::DeleteMissing,
        Kind::DeleteDeleted,
        Kind::OwnInsert,
        Kind::OwnDelete,
    ];

    fn conflict(self) -> Option<&'static str> {
        match self {
            Kind::InsertExists => Some("insert_exists"),
            Kind::UpdateExists => Some("update_exists"),
            Kind::MultipleUniqueConflicts => Some("multiple_unique_conflicts"),
            Kind::UpdateOriginDiffers => Some("update_origin_differs"),
            Kind::DeleteOriginDiffers => Some("delete_origin_differs"),
            Kind::UpdateDeleted | Kind::UpdateMoved => Some("update_deleted"),
            Kind::UpdateMissing => Some("update_missing"),
            Kind::DeleteMissing | Kind::DeleteDeleted => Some("delete_missing"),
            Kind::OwnInsert | Kind::OwnDelete => None,
        }
    }

    /// The source has had the row since before the subscription, which does not copy.
    fn is_of_absent(self) -> bool {
        matches!(self, Kind::UpdateMissing | Kind::DeleteMissing)
    }
}

/// Whose change is committed first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    LocalFirst,
    RemoteFirst,
}

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Story {
    table: Table,
    kind: Kind,
    pub(crate) order: Order,
    pub(crate) id: i64,
}

/// Id, unique value and text.
pub(crate) type Row = (i64, i64, &'static str);

/// A record of the history: type, rule, whether the change was written, whether there was a row of
/// the target, and how many records.
pub(crate) struct Record {
    pub(crate) conflict: &'static str,
    pub(crate) resolution: &'static str,
    pub(crate) is_applied: bool,
    pub(crate) has_local: bool,
    pub(crate) count: usize,
}

impl Story {
    pub(crate) fn table(self) -> Table {
        self.table
    }

    /// Whether both may be told in one transaction: its records must tell them apart.
    pub(crate) fn is_unlike(self, other: Story) -> bool {
        self.table != other.table || self.kind.conflict() != other.kind.conflict()
    }

    /// Both ends have [`Story::base`] before the story begins.
    pub(crate) fn has_base(self) -> bool {
        !self.kind.is_of_absent()
            && !matches!(self.kind, Kind::InsertExists | Kind::MultipleUniqueConflicts | Kind::OwnInsert)
    }

    pub(crate) fn base(self) -> Row {
        (self.id, self.id, "base")
    }

    /// What the target's own client does.
    pub(crate) fn local(self) -> Option<String> {
        let (table, k) = (self.table.name(), self.id);
        let insert = |rows: &[Row]| Some(format!("INSERT INTO {table} VALUES {}", values(rows)));
        let update = |what: &str| Some(format!("UPDATE {table} SET {what}, v = 'local' WHERE id = {k}"));
        match self.kind {
            Kind::InsertExists | Kind::OwnInsert => insert(&[self.local_row(0)]),
            Kind::UpdateExists => insert(&[self.local_row(1)]),
            Kind::MultipleUniqueConflicts => insert(&self.holders()),
            Kind::UpdateOriginDiffers | Kind::DeleteOriginDiffers => update("u = u"),
            Kind::UpdateMoved => update(&format!("id = {0}, u = {0}", k + 5)),
            Kind::UpdateDeleted | Kind::DeleteDeleted | Kind::OwnDelete => {
                Some(format!("DELETE FROM {table} WHERE id = {k}"))
            }
            Kind::UpdateMissing | Kind::DeleteMissing => None,
        }
    }

    /// What the source does.
    pub(crate) fn remote(self) -> Option<String> {
        let (table, k) = (self.table.name(), self.id);
        let insert = |row: Row| Some(format!("INSERT INTO {table} VALUES {}", values(&[row])));
        let update = |u: i64| Some(format!("UPDATE {table} SET u = {u}, v = 'remote' WHERE id = {k}"));
        match self.kind {
            Kind::InsertExists | Kind::MultipleUniqueConflicts => insert(self.remote_row()),
            Kind::UpdateExists => update(k + 1),
            Kind::UpdateOriginDiffers | Kind::UpdateDeleted | Kind::UpdateMoved | Kind::UpdateMissing => {
                update(k)
            }
            Kind::DeleteOriginDiffers | Kind::DeleteMissing | Kind::DeleteDeleted => {
                Some(format!("DELETE FROM {table} WHERE id = {k}"))
            }
            Kind::OwnInsert | Kind::OwnDelete => None,
        }
    }

    fn local_row(self, step: i64) -> Row {
        (self.id + step, self.id + step, "local")
    }

    /// The rows that hold the keys of [`Kind::MultipleUniqueConflicts`].
    fn holders(self) -> [Row; 2] {
        [(self.id + 1, self.id + 3, "local"), (self.id + 2, self.id + 4, "local")]
    }

    /// The row that the source has written, where it does not delete.
    fn remote_row(self) -> Row {
        let k = self.id;
        match self.kind {
            // Both keys in one row would be several conflicts.
            Kind::InsertExists => (k, k + 6, "remote"),
            Kind::UpdateExists => (k, k + 1, "remote"),
            Kind::MultipleUniqueConflicts => (k + 1, k + 4, "remote"),
            _ => (k, k, "remote"),
        }
    }

    /// Whether the source's change is written to the target in spite of the conflict.
    fn is_applied(self) -> bool {
        let resolution = self.kind.conflict().map(|conflict| self.table.resolution(conflict));
        match resolution {
            Some("apply_remote") => true,
            // No deletion can be later than the update of a row that was never there.
            Some("last_update_wins") => self.order == Order::LocalFirst || self.kind.is_of_absent(),
            _ => false,
        }
    }

    /// What the history must have of this story.
    pub(crate) fn record(self) -> Option<Record> {
        let conflict = self.kind.conflict()?;
        Some(Record {
            conflict,
            resolution: self.table.resolution(conflict),
            is_applied: self.is_applied(),
            has_local: !matches!(conflict, "update_missing" | "delete_missing"),
            count: if self.kind == Kind::MultipleUniqueConflicts { 2 } else { 1 },
        })
    }

    /// The rows that are left on the source.
    pub(crate) fn left_on_source(self) -> Vec<Row> {
        match self.kind {
            Kind::DeleteOriginDiffers | Kind::DeleteMissing | Kind::DeleteDeleted | Kind::OwnInsert => {
                Vec::new()
            }
            Kind::OwnDelete => vec![self.base()],
            _ => vec![self.remote_row()],
        }
    }

    /// The rows that are left on the target.
    pub(crate) fn left_on_target(self) -> Vec<Row> {
        let mut left = match (self.kind, self.is_applied()) {
            (Kind::UpdateMoved, _) => vec![self.local_row(5)],
            (Kind::OwnInsert, _) => vec![self.local_row(0)],
            (_, true) => Vec::new(),
            (Kind::InsertExists | Kind::UpdateOriginDiffers | Kind::DeleteOriginDiffers, false) => {
                vec![self.local_row(0)]
            }
            (Kind::UpdateExists, false) => vec![self.base(), self.local_row(1)],
            (Kind::MultipleUniqueConflicts, false) => self.holders().to_vec(),
            _ => Vec::new(),
        };
        if self.is_applied() && self.kind != Kind::DeleteOriginDiffers {
            left.push(self.remote_row());
        }
        left
    }
}

/// Rows as SQL has them behind `VALUES`.
pub(crate) fn values(rows: &[Row]) -> String {
    rows.iter().map(|(id, u, v)| format!("({id}, {u}, '{v}')")).collect::<Vec<_>>().join(", ")
}

/// Gives out ids, each once.
#[derive(Default)]
pub(crate) struct Plot {
    told: i64,
    absent: i64,
}

impl Plot {
    fn story(&mut self, table: Table, kind: Kind, order: Order) -> Story {
        let id = if kind.is_of_absent() {
            self.absent += 1;
            -self.absent
        } else {
            self.told += 1;
            self.told * IDS
        };
        Story { table, kind, order, id }
    }

    /// Stories of each kind in each table whose end does not depend on when pgsluice applies the
    /// source's change. An UPDATE that is later than the deletion of its row does not belong to
    /// them: the deletion may have been forgotten by then.
    pub(crate) fn while_it_runs(&mut self) -> Vec<Story> {
        self.of_all(|kind| match kind.conflict() {
            Some("update_deleted") => &[],
            _ => &[Order::LocalFirst],
        })
    }

    /// Stories of each kind in each table and in both orders, for ends that are apart.
    pub(crate) fn while_it_stands_still(&mut self) -> Vec<Story> {
        self.of_all(|kind| match kind {
            Kind::OwnInsert | Kind::OwnDelete => &[],
            Kind::UpdateMissing | Kind::DeleteMissing => &[Order::LocalFirst],
            _ => &[Order::LocalFirst, Order::RemoteFirst],
        })
    }

    fn of_all(&mut self, orders: impl Fn(Kind) -> &'static [Order]) -> Vec<Story> {
        let mut stories = Vec::new();
        for table in Table::ALL {
            for kind in Kind::ALL {
                for order in orders(kind) {
                    stories.push(self.story(table, kind, *order));
                }
            }
        }
        stories
    }

    /// Rows of the source alone that were used up, in all tables together.
    pub(crate) fn absent(&self) -> i64 {
        self.absent
    }
}
