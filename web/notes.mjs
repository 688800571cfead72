// A template's note and its own titles are in the editor's language alone: they bring their translations as a property.

import { app } from '../../scripts/app.js'
import { getLanguage } from './text.mjs'

const TRANSLATED = 'paralleldit_translated'

app.registerExtension({
  name: 'ParallelDiT.Notes',

  afterConfigureGraph() {
    for (const node of app.rootGraph.nodes) {
      const known = node.properties?.[TRANSLATED]
      if (!known) continue
      const language = getLanguage()
      const { title, text } = known[language] ?? known[language.split('-')[0]] ?? {}
      if (title) node.title = title
      if (text) node.widgets[0].value = text
      delete node.properties[TRANSLATED] // from now on it is a node like any other
    }
  }
})
