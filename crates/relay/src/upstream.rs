//! How clients log in to the publisher: with their own rights, whatever the relay's role may do.
//!
//! ```text
//! the user is in the map ----> the map's role and password
//! it came with a password ---> the same role; its login gave the key, if the verifiers are equal
//! otherwise -----------------> the same role, without a password: the publisher must trust it
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use client::ConnInfo;
use listener::UserMap;
use proto::scram::ClientKeys;
use proto::startup::Startup;

/// The publisher, as clients log in there. Clones share the map.
#[derive(Debug, Clone)]
pub struct Upstream {
    publisher: ConnInfo,
    map: Arc<Mutex<Arc<UserMap>>>,
}

impl Upstream {
    /// The publisher, as the relay itself connects, and who logs in there as somebody else.
    #[must_use]
    pub fn new(publisher: ConnInfo, map: UserMap) -> Upstream {
        Upstream { publisher, map: Arc::new(Mutex::new(Arc::new(map))) }
    }

    /// The publisher, as the relay itself connects.
    #[must_use]
    pub fn publisher(&self) -> &ConnInfo {
        &self.publisher
    }

    /// Replaces the map for connections to come.
    pub fn reload(&self, map: UserMap) {
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
    }

    fn map(&self) -> Arc<UserMap> {
        Arc::clone(&self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The role that a user has at the publisher.
    #[must_use]
    pub fn role_of(&self, user: &str) -> String {
        self.map().find(user).map_or(user, |login| &login.role).to_owned()
    }

    /// How a client logs in.
    pub(crate) fn login_of(&self, startup: &Startup, keys: Option<ClientKeys>) -> ConnInfo {
        let Startup { user, database, options, .. } = startup;
        match self.map().find(user) {
            Some(login) => {
                self.publisher.as_role(&login.role, database, options, None).with_password(&login.password)
            }
            None => self.publisher.as_role(user, database, options, keys),
        }
    }
}
