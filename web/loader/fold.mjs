// A loader that was a stock one keeps its size: settings that the stock loader lacks are folded until a person asks for
// them or sets them, and so is an output that it lacks.

import { DEFAULTS, KINDS, ORIGIN } from '../convert/loaders.mjs'
import { setHidden } from '../plan/size.mjs'
import { setAdvanced } from '../plan/used.mjs'

const FOLDED = ['dtype', 'group'] // by meaning
const SHOWS_ALL = 'paralleldit_shows_all' // a property of the node

/** Returns whether a loader was a stock one, and so has settings to fold. */
export const canFold = (node) => Boolean(node.properties?.[ORIGIN])

/** Returns whether a person asked for all settings of the loader. */
export const showsAll = (node) => Boolean(node.properties?.[SHOWS_ALL])

/** Asks for all settings of a loader, or for no more of them than it needs. */
export function setShowsAll(node, yes) {
  if (yes) node.properties[SHOWS_ALL] = true
  else delete node.properties[SHOWS_ALL]
}

/** Folds what a loader's stock one lacks, and unfolds what is to be seen. */
export function fold(node) {
  if (!canFold(node)) return
  const { widgets } = KINDS[node.type]
  const isLinked = (name) => node.inputs?.some((input) => input.widget?.name === name && input.link != null)
  const isFolded = ({ name, value }, meaning) => !showsAll(node) && value === DEFAULTS[meaning] && !isLinked(name)
  const found = FOLDED.map((meaning) => [meaning, node.widgets.find(({ name }) => name === widgets[meaning])])
  for (const [meaning, widget] of found) {
    const hidden = isFolded(widget, meaning)
    setAdvanced(widget, hidden)
    setHidden(node, [widget], hidden)
  }
  const last = node.outputs.at(-1)
  const had = KINDS[node.properties[ORIGIN].type]?.outputs ?? []
  if (!had.includes(last.name) && had.length < node.outputs.length && !last.links?.length) {
    node.removeOutput(node.outputs.length - 1)
  }
}
