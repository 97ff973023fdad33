//! Roles and tablespaces, which belong to a server and not to a database.
//!
//! Owners and privileges are kept if the target has every named role and our role may hand objects
//! to the owners. Either all are kept or none, because nobody has planned for half of them. Without
//! them everything belongs to our role. A tablespace that the target lacks is left out.

use std::collections::BTreeSet;

use client::Session;
use sql_tokens::{Token, words};

use crate::error::{Error, Kind};
use crate::plan::{Schema, setting};

/// What a schema names beyond itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    /// Roles that something is to belong to, or that grant.
    owners: BTreeSet<String>,
    /// Other roles that are granted something.
    grantees: BTreeSet<String>,
    /// Roles that policies are about.
    policies: BTreeSet<String>,
    tablespaces: BTreeSet<String>,
}

/// Leaves out of `schema` what the target has no place for; what was left out
/// and why, in words.
pub(crate) async fn fit(schema: &mut Schema, target: &Session) -> Result<Vec<String>, Error> {
    let mut named = Named::default();
    for statements in schema.statements_mut() {
        statements.iter().for_each(|statement| named.look_into(statement));
    }
    let failed = |error| Error::client("ask the target for its roles and tablespaces", target.error(error));
    let sql = "SELECT r.rolname::text, s.rolsuper, r.rolname = s.rolname \
                 FROM pg_catalog.pg_roles r, pg_catalog.pg_roles s WHERE s.rolname = CURRENT_USER";
    let rows = target.query(sql, &[]).await.map_err(failed)?;
    let roles: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let is_superuser = rows.iter().any(|row| row.get(1));
    let own: String = rows.iter().find(|row| row.get(2)).map(|row| row.get(0)).unwrap_or_default();
    let sql = "SELECT spcname::text FROM pg_catalog.pg_tablespace";
    let spaces: BTreeSet<String> =
        target.query(sql, &[]).await.map_err(failed)?.iter().map(|row| row.get(0)).collect();
    if let Some(missing) = list(named.policies.difference(&roles)) {
        return Err(Kind::MissingRoles { roles: missing }.into());
    }
    let mut left_out = Vec::new();
    let missing = list(named.owners.union(&named.grantees).filter(|role| !roles.contains(*role)));
    let others = list(named.owners.iter().filter(|role| **role != own));
    let why = match (missing, others) {
        (Some(missing), _) => Some(format!("the target has no role {missing}")),
        (None, Some(others)) if !is_superuser => {
            Some(format!("role {own} is no superuser and cannot hand objects to {others}"))
        }
        _ => None,
    };
    if let Some(why) = why {
        schema.statements_mut().for_each(|statements| statements.retain(|sql| !is_about_roles(sql)));
        left_out.push(format!(
            "pgsluice leaves out owners and privileges, and everything belongs to {own}: {why}"
        ));
    }
    if let Some(missing) = list(named.tablespaces.difference(&spaces)) {
        for statement in schema.statements_mut().flatten() {
            if tablespace(&words(statement)).is_some_and(|name| !spaces.contains(&name)) {
                "SET default_tablespace = ''".clone_into(statement);
            }
        }
        left_out.push(format!("the target has no tablespace {missing}: pgsluice uses its default one"));
    }
    schema.before.retain(|entry| !entry.statements.is_empty());
    schema.steps.retain(|step| step.statements.iter().any(|statement| setting(statement).is_none()));
    Ok(left_out)
}

/// Names with commas between, if there are any.
fn list<'a>(names: impl Iterator<Item = &'a String>) -> Option<String> {
    let names: Vec<&str> = names.map(String::as_str).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

impl Named {
    fn look_into(&mut self, statement: &str) {
        let tokens = words(statement);
        self.tablespaces.extend(tablespace(&tokens));
        self.owners.extend(owner(&tokens));
        self.owners.extend(grantor(&tokens));
        self.grantees.extend(grantee(&tokens));
        self.policies.extend(of_policy(&tokens));
    }
}

/// Whether a statement is an owner's or a privilege.
fn is_about_roles(statement: &str) -> bool {
    let tokens = words(statement);
    let ends_session = tokens.first().is_some_and(|word| word.is("reset"))
        && tokens.last().is_some_and(|word| word.is("authorization"));
    owner(&tokens).is_some() || grantor(&tokens).is_some() || is_grant(&tokens) || ends_session
}

/// `SET default_tablespace = name`; `''` is none.
fn tablespace(tokens: &[Token<'_>]) -> Option<String> {
    match tokens {
        [set, setting, _, name] if set.is("set") && setting.is("default_tablespace") => name.name(),
        _ => None,
    }
}

/// `ALTER ... OWNER TO role`
fn owner(tokens: &[Token<'_>]) -> Option<String> {
    match tokens {
        [alter, .., owner, to, role] if alter.is("alter") && owner.is("owner") && to.is("to") => role.name(),
        _ => None,
    }
}

/// `SET SESSION AUTHORIZATION role`, `ALTER DEFAULT PRIVILEGES FOR ROLE role`
fn grantor(tokens: &[Token<'_>]) -> Option<String> {
    match tokens {
        [set, session, authorization, role]
            if set.is("set") && session.is("session") && authorization.is("authorization") =>
        {
            role.name()
        }
        [alter, default, privileges, _, role, name, ..]
            if alter.is("alter")
                && default.is("default")
                && privileges.is("privileges")
                && role.is("role") =>
        {
            name.name()
        }
        _ => None,
    }
}

fn is_grant(tokens: &[Token<'_>]) -> bool {
    let begins = |keyword: &str| tokens.first().is_some_and(|word| word.is(keyword));
    begins("grant")
        || begins("revoke")
        || begins("alter") && tokens.get(1).is_some_and(|word| word.is("default"))
}

/// `GRANT ... TO role`, `REVOKE ... FROM role`; pg_dump names one at a time.
fn grantee(tokens: &[Token<'_>]) -> Option<String> {
    if !is_grant(tokens) {
        return None;
    }
    let at = tokens.iter().rposition(|word| word.is("to") || word.is("from"))?;
    let role = tokens.get(at + 1)?;
    if role.is("public") { None } else { role.name() }
}

/// `CREATE POLICY ... TO role, role USING ...`
fn of_policy(tokens: &[Token<'_>]) -> Vec<String> {
    let is_policy = tokens.first().is_some_and(|word| word.is("create"))
        && tokens.get(1).is_some_and(|word| word.is("policy"));
    let is_end = |word: &&Token<'_>| !(word.is("using") || word.is("with"));
    let roles =
        tokens.iter().filter(|_| is_policy).take_while(is_end).skip_while(|word| !word.is("to")).skip(1);
    roles.filter(|word| !word.is("public")).filter_map(Token::name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_tablespaces_are_found_where_they_stand() {
        let mut named = Named::default();
        let statements = [
            "ALTER TABLE s.t OWNER TO \"The Owner\"",
            "GRANT SELECT(\"to\") ON TABLE s.t TO reader WITH GRANT OPTION",
            "REVOKE ALL ON FUNCTION s.f() FROM PUBLIC",
            "GRANT ALL ON SCHEMA s TO \"public\"",
            "ALTER DEFAULT PRIVILEGES FOR ROLE maker IN SCHEMA s GRANT SELECT ON TABLES TO writer",
            "SET SESSION AUTHORIZATION granter",
            "CREATE POLICY p ON s.t AS RESTRICTIVE FOR SELECT TO one, \"t wo\" USING (a IN (SELECT x FROM y))",
            "CREATE POLICY p ON s.t TO PUBLIC WITH CHECK (true)",
            "SET default_tablespace = fast",
            "SET default_tablespace = ''",
        ];
        statements.iter().for_each(|statement| named.look_into(statement));
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(named.owners, set(&["The Owner", "granter", "maker"]));
        assert_eq!(named.grantees, set(&["reader", "public", "writer"]));
        assert_eq!(named.policies, set(&["one", "t wo"]));
        assert_eq!(named.tablespaces, set(&["fast"]));
        assert_eq!(
            statements.map(is_about_roles),
            [true, true, true, true, true, true, false, false, false, false]
        );
        assert!(is_about_roles("RESET SESSION AUTHORIZATION"));
        let others = ["ALTER TABLE s.t ADD CONSTRAINT c CHECK (true)", "CREATE POLICY p ON s.t TO reader"];
        assert_eq!(others.map(is_about_roles), [false, false]);
    }
}
