//! What the reference says about an error beside its message: how it comes about and what to do.
//!
//! Each crate lists its errors with [`error_reference!`](crate::error_reference!): an arm for each
//! kind, with an example. The example prints the message, so the message is written only once,
//! where the error is. The list compiles only if every kind has an arm. What happens with an error
//! (whether it is retried, and with which status the program ends) does not belong here: the
//! program decides about the example as it decides about real errors.

/// What an operator was doing when the error came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doing {
    /// Writing settings, or a command line.
    Configuring,
    /// Reaching a server.
    Connecting,
    /// Starting a subscription, for the first time or again.
    Starting,
    /// Creating the source's schema on the target.
    CreatingSchema,
    /// Copying tables.
    Copying,
    /// Reading the source's stream.
    Streaming,
    /// Writing to the target.
    Applying,
    /// Comparing both ends.
    Verifying,
    /// Taking over from a native subscription, or handing back.
    Adopting,
    /// Querying or controlling a running process.
    Operating,
    /// Decoding WAL from files.
    Decoding,
    /// Serving subscribers in the publisher's place.
    Relaying,
    /// Keeping state on this machine's disk or on the target.
    KeepingState,
}

/// A test that meets the error: its place and its name. The place is the package, and the target in
/// its `tests` unless it is a unit test.
pub type HeldBy = (&'static str, &'static str);

/// One error as an operator meets it.
#[derive(Debug)]
pub struct Entry<E> {
    /// The part of the reference that has it.
    pub doing: Doing,
    /// In a few words. No two titles are equal.
    pub title: &'static str,
    /// An example, which prints the message.
    pub error: E,
    /// How it comes about.
    pub cause: &'static str,
    /// What to do, as an order, with the command, setting or object.
    pub remedy: &'static str,
    /// Tests that meet it. May be empty.
    pub held_by: &'static [HeldBy],
}

impl<E> Entry<E> {
    /// The same entry for an error that carries this one.
    pub fn map<F>(self, carry: impl FnOnce(E) -> F) -> Entry<F> {
        let Entry { doing, title, error, cause, remedy, held_by } = self;
        Entry { doing, title, error: carry(error), cause, remedy, held_by }
    }
}

/// Makes one entry for an arm. The arguments are in the order of its fields.
pub fn entry<E>(
    doing: Doing,
    title: &'static str,
    error: impl Into<E>,
    cause: &'static str,
    remedy: &'static str,
    held_by: &'static [HeldBy],
) -> [Entry<E>; 1] {
    [Entry { doing, title, error: error.into(), cause, remedy, held_by }]
}

/// The entries of an error that another error carries unchanged.
pub fn carried<E, F: From<E>>(entries: Vec<Entry<E>>) -> impl Iterator<Item = Entry<F>> {
    entries.into_iter().map(|entry| entry.map(F::from))
}

/// For a kind that has no entry of its own: either its message is that of an error with an entry in
/// another crate, or it is never shown.
#[must_use]
pub fn nothing_of_its_own<E>() -> [Entry<E>; 0] {
    []
}

/// Makes a function that lists every kind of an error, with arms like those of a `match`:
/// `pattern => entries`.
///
/// `kind` says how to get from the error to the value that the patterns match. Several arms may
/// have the same pattern. A kind without an arm is an error of the compiler.
#[macro_export]
macro_rules! error_reference {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident() -> $error:ty where $own:ident is $kind:expr => $type:ty;
        $($pattern:pat => $entries:expr),+ $(,)?
    ) => {
        $(#[$attribute])*
        $visibility fn $name() -> Vec<$crate::error_reference::Entry<$error>> {
            #[allow(unreachable_patterns, reason = "one kind may have several entries")]
            const _EVERY_KIND_HAS_AN_ARM: fn(&$type) = |kind| match kind { $($pattern => (),)+ };
            fn kind_of($own: &$error) -> &$type { $kind }
            let mut all: Vec<$crate::error_reference::Entry<$error>> = Vec::new();
            $(
                let before = all.len();
                all.extend($entries);
                for entry in &all[before..] {
                    assert!(
                        matches!(kind_of(&entry.error), $pattern),
                        "{:?} is no {}", entry.error, stringify!($pattern)
                    );
                }
            )+
            all
        }
    };
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    enum Inner {
        #[allow(dead_code, reason = "an arm is wanted all the same")]
        Low,
        High(u8),
    }

    #[derive(Debug)]
    struct Outer(Inner);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {
                Inner::Low => f.write_str("low"),
                Inner::High(by) => write!(f, "high by {by}"),
            }
        }
    }

    fn example(inner: Inner) -> [Entry<Outer>; 1] {
        entry(Doing::Starting, "A title", Outer(inner), "A cause.", "Do it.", &[])
    }

    error_reference! {
        fn right() -> Outer where own is &own.0 => Inner;
        Inner::Low => nothing_of_its_own(),
        Inner::High(_) => example(Inner::High(1)),
        Inner::High(_) => example(Inner::High(2)),
    }

    error_reference! {
        fn mistaken() -> Outer where own is &own.0 => Inner;
        Inner::Low => example(Inner::High(1)),
        Inner::High(_) => nothing_of_its_own(),
    }

    #[test]
    fn messages_are_the_examples_own() {
        let messages: Vec<String> = right().iter().map(|entry| entry.error.to_string()).collect();
        assert_eq!(messages, ["high by 1", "high by 2"]);
    }

    #[test]
    #[should_panic(expected = "High(1)) is no Inner::Low")]
    fn an_example_of_another_kind_is_a_mistake() {
        mistaken();
    }
}
