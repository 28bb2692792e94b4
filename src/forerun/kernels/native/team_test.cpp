// When does a team leave its work to the caller? Prints what is wrong, and returns 0 where nothing
// is. Times are far from the bounds; where a machine may be late by itself, one of many tries counts.
#include <cstdio>

#include "team.h"

namespace {

using forerun::Team;
using std::chrono::microseconds;

struct Late {
    Team* team;
    microseconds by;
};

// One call whose member 1, if it takes part, is late. Returns the members that took part.
int call(Team& team, microseconds late) {
    Late context{&team, late};
    const auto work = [](void* erased, int member) {
        const Late& here = *static_cast<Late*>(erased);
        if (member == 1) std::this_thread::sleep_for(here.by);
        here.team->barrier(member);
    };
    team.run(work, &context);
    return team.active();
}

int failures = 0;

void check(bool right, const char* what) {
    if (right) return;
    std::fprintf(stderr, "%s\n", what);
    ++failures;
}

bool together_after(microseconds late, int calls) {
    Team team(2, false);
    for (int i = 0; i < calls; ++i) call(team, late);
    return call(team, microseconds(0)) == 2;
}

bool together_again() {
    Team team(2, false);
    call(team, microseconds(4000));
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return call(team, microseconds(0)) == 2 && call(team, microseconds(0)) == 2;
}

template <class Try>
bool one_of_many(const Try& attempt) {
    for (int i = 0; i < 20; ++i)
        if (attempt()) return true;
    return false;
}

}  // namespace

int main() {
    check(!together_after(microseconds(4000), 1), "a lost core is not noticed");
    check(!together_after(microseconds(1000), 5), "short waits, one after the other, are forgotten");
    check(one_of_many([] { return together_after(microseconds(1000), 1); }),
          "a short wait ends the team's work");
    check(one_of_many(together_again), "the caller stays alone");

    Team steady(2, true);
    call(steady, microseconds(4000));
    check(call(steady, microseconds(0)) == 2, "a steady team leaves the caller alone");
    return failures != 0;
}
