/* Processes that share a directory of decisions, a slot each: who finishes what one has left that ended.

   The guide has the sentences (man/guide/protocol.md, "Slots of a directory"). One slot, and one transaction of the
   process that has it first, at two participants. HEIRS others look at the slot LOOKS times each and adopt it; one more
   starts in it where it is free. Each may be killed at any step. A prepare arrives late, or when its process is dead. A
   participant may be out of reach whenever it is asked.

   What must hold:
     all or none    the participants never end the transaction differently, nor than the application was told
     no doubt       when all are over and can be reached, one more adoption leaves no branch prepared  (LAST)
     one name       no two processes that may begin transactions have the same node and epoch  (name)

   What else may happen, each by -D:
     POWER     the power goes once: what was not synced is lost, and all that run end
     LOST      a lock is lost while its process lives, as a server of NFS may lose it
     OLDER     while nobody has it, the directory is replaced by a copy that is older than the transaction
     SILENT    one participant lists nothing, and has to be told of a commit
     NO_LOCK   a slot is adopted without its lock: who is named as its owner is guard enough, and the other way round

   Mutants, each a clause that is broken, are -DM_...; test_model.py has the list, and what each needs. */

#ifndef LOOKS
#define LOOKS 2
#endif
#ifndef HEIRS
#define HEIRS 1
#endif

#define NOTHING 0
#define PREPARED 1
#define COMMITTED 2
#define ROLLED_BACK 3

#define FIRST 1 /* who has the slot at first */
#define NEXT 2  /* who starts later, in the same slot where it is free */
#define HEIR 3
#define LAST 9 /* when all is over, and can be reached */

byte branch[2];
bool on_its_way[2];

byte holder = FIRST; /* of the lock */
byte owner = FIRST;  /* as the file of that name says */
byte journal = FIRST; /* whose it is: each begins one of its own, and writes to no other */
byte epoch = 1;      /* of the slot, and of what is on disk of it */
byte epoch_d = 1;
bool decided, decided_d, done;
bool exists = true;
byte of_branch;      /* the epoch in the transaction's name */
bool used[12];       /* epochs of those that may give names */
bool told;           /* the application, of the commit */
byte boot, ended;
bool finished_once;
byte looking;        /* how many are about to adopt */

#define MAY_DIE if :: skip :: me != LAST -> goto dead fi
#define STEP(what) MAY_DIE; atomic { if :: boot != mine -> goto dead :: else fi; what }
#define ALL_OR_NONE \
	assert(!(branch[0] == COMMITTED && branch[1] == ROLLED_BACK)); \
	assert(!(branch[0] == ROLLED_BACK && branch[1] == COMMITTED)); \
	assert(!told || (branch[0] != ROLLED_BACK && branch[1] != ROLLED_BACK))
#ifdef SILENT
#define LISTS(n) (n == 0)
#else
#define LISTS(n) true
#endif

inline name(number) {
	assert(!used[number]);
	used[number] = true
}

inline leave(who) {
	atomic {
		if
		:: holder == who -> holder = 0
		:: else
		fi;
		ended++
	}
}

proctype First() {
	byte me = FIRST, mine;
#ifdef M_SOFT_NODE
	STEP(epoch = 2);
#else
	STEP(epoch = 2; epoch_d = 2);
#endif
	STEP(if :: owner != FIRST -> goto dead :: else fi);
	STEP(of_branch = 2; name(2); on_its_way[0] = true);
	STEP(on_its_way[1] = true);
	if
	:: branch[0] == PREPARED && branch[1] == PREPARED
	:: goto dead
	fi;
#ifdef M_JOURNAL
	STEP(decided = true);
#else
	STEP(decided = journal == FIRST);
#endif
#ifndef M_SOFT_DECISION
	STEP(decided_d = decided);
#endif
#ifndef M_OWNER
	STEP(if :: owner != FIRST -> goto dead :: else fi);
#endif
	STEP(told = true; ALL_OR_NONE);
	STEP(branch[0] = COMMITTED; ALL_OR_NONE);
	STEP(branch[1] = COMMITTED; ALL_OR_NONE);
	STEP(done = true);
dead:
	leave(FIRST)
}

/* Adopts the slot, or starts in it. */
proctype Heir(byte me) {
	byte mine, looks, at, now;
	bool heard, later, says, complete, reached;
	do
	:: looks == LOOKS -> goto dead
	:: else ->
		atomic { looks++; mine = boot; looking++ }
		d_step { heard = false; later = false; complete = true; at = 0 }
		do
		:: at == 2 -> break
		:: else ->
			atomic {
				if
				:: branch[at] == PREPARED && LISTS(at) -> heard = true
				:: me != LAST || branch[at] != PREPARED || !LISTS(at)
				fi;
				at++
			}
		od;
		atomic { /* looks at the log, without the lock */
#ifndef M_OLDER
			later = heard && of_branch > epoch;
#endif
#ifdef M_LISTED
			heard = false;
#endif
#ifndef M_DECIDED
			heard = heard || (decided && !done);
#endif
#ifdef M_ONCE
			heard = heard && !finished_once;
#endif
#ifdef M_EARLY
			says = decided && !done;
#endif
			if
			:: later || !exists || (me != NEXT && !heard) -> goto over
			:: else
			fi
		}
		STEP(
#ifndef NO_LOCK
			if
			:: holder != 0 -> goto over
			:: else -> holder = me
			fi
#else
			skip
#endif
		);
#ifndef M_OWNER_LATE
		STEP(owner = me);
#endif
#ifndef M_EARLY
		STEP(says = decided && !done; journal = me);
#endif
#ifndef M_UNSYNCED
		STEP(decided_d = decided);
#endif
#ifdef M_EPOCH
		STEP(now = epoch);
#else
		STEP(now = epoch + 1; epoch = now; epoch_d = now);
#endif
#ifdef M_OWNER_LATE
		STEP(owner = me);
#endif
		if
		:: me == NEXT -> STEP(if :: owner == me -> name(now) :: else -> goto dead fi)
		:: else
		fi;
		at = 0;
		do
		:: at == 2 -> break
		:: else ->
			if
			:: reached = true
			:: me != LAST -> reached = false
			fi;
			STEP(
				if
				:: !reached -> complete = false
				:: reached && branch[at] == PREPARED && of_branch < now && says -> branch[at] = COMMITTED
				:: reached && branch[at] == PREPARED && of_branch < now && !says && LISTS(at) ->
					branch[at] = ROLLED_BACK
				:: else
				fi;
				ALL_OR_NONE
			);
			at++
		od;
		if
		:: complete ->
			STEP(done = done || says; finished_once = true
#ifdef M_REMOVED
				; exists = false
#endif
			)
		:: else
		fi;
over:
		atomic {
			if
			:: holder == me -> holder = 0
			:: else
			fi;
			looking--
		}
	od;
dead:
	leave(me)
}

active proctype Network() {
	do
	:: atomic { on_its_way[0] -> on_its_way[0] = false; if :: branch[0] == NOTHING -> branch[0] = PREPARED :: else fi }
	:: atomic { on_its_way[1] -> on_its_way[1] = false; if :: branch[1] == NOTHING -> branch[1] = PREPARED :: else fi }
	:: ended == HEIRS + 2 && !on_its_way[0] && !on_its_way[1] -> break
	od;
	run Heir(LAST)
}

#ifdef POWER
active proctype Power() {
	if
	:: atomic { ended < HEIRS + 2 -> boot = 1; holder = 0; epoch = epoch_d; decided = decided_d; done = false }
	:: ended >= HEIRS + 2
	fi
}
#endif

#ifdef LOST
active proctype Lost() {
	if
	:: atomic { ended < HEIRS + 2 -> holder = 0 }
	:: ended >= HEIRS + 2
	fi
}
#endif

#ifdef OLDER
active proctype Older() {
end:	atomic { holder == 0 && looking == 0 && of_branch == 2 -> epoch = 1; epoch_d = 1; decided = false; decided_d = false; done = false }
}
#endif

init {
	byte more;
	atomic {
		run First();
#ifdef OLDER
		ended++;
#else
		run Heir(NEXT);
#endif
		do
		:: more == HEIRS -> break
		:: else -> run Heir(HEIR + more); more++
		od
	}
	ended == HEIRS + 3;
#if !defined(OLDER) && !defined(SILENT)
	assert(branch[0] != PREPARED && branch[1] != PREPARED)
#endif
#ifdef SILENT
	assert(branch[0] != PREPARED && (branch[1] != PREPARED || !decided))
#endif
}
