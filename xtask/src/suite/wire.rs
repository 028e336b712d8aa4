//! Two hosts: namespaces joined by a veth pair.

use super::{Cases, host, seconds};
use crate::netns::{End, Family, Joined};
use crate::pair::{self, Kind, Pingpong, Place, User};
use crate::process::Outcome;
use crate::suite::case::Case;

pub(super) fn pingpongs(cases: &mut Cases<'_>) -> Outcome {
    let joined = Joined::new(1500)?;
    for (user_name, user) in &host::users()? {
        for family in Family::BOTH {
            for pingpong in Pingpong::matrix() {
                let name = format!("{}-{}-{user_name}", pingpong.name(), family.name());
                cases
                    .case(name, seconds(60), |case| between(case, pingpong, user, &joined, family));
            }
        }
    }
    // Interfaces of 9000 bytes carry the largest path MTU.
    let jumbo = Joined::new(9000)?;
    for family in Family::BOTH {
        for kind in [Kind::Rc, Kind::Uc, Kind::Srq] {
            let pingpong = Pingpong { mtu: Some(4096), ..Pingpong::new(kind, 1 << 16, false) };
            cases.case(format!("{}-{}", pingpong.name(), family.name()), seconds(60), |case| {
                between(case, pingpong, &User::own(), &jumbo, family)
            });
        }
    }
    Ok(())
}

/// A pair whose server is at `a` and whose client is at `b`.
pub(super) fn between(
    case: &mut Case,
    pingpong: Pingpong,
    user: &User,
    joined: &Joined,
    family: Family,
) -> Outcome {
    let mut place = |end| -> Outcome<Place<'_>> {
        let namespace = joined.end(end);
        let address = Joined::address(end, family);
        let gid_index = pair::gid_index(case, user, namespace, family, address)?;
        Ok(Place { namespace, gid_index })
    };
    let (server, client) = (place(End::A)?, place(End::B)?);
    // The servers listen on IPv4 only; the GIDs alone say how the data goes.
    pair::run(case, pingpong, user, &server, &client, Joined::address(End::A, Family::V4))
}
